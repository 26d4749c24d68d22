"""Methods that users compare with: group-relative ones without a signal of their own, and on the graph of states."""

from .g2po import g2po
from .gagpo import gagpo
from .graphgpo import graphgpo
from .hcapo import hcapo
from .hgpo import hgpo
from .mt_grpo import mt_grpo
from .rewardflow import rewardflow
from .rloo import rloo
from .tree_grpo import tree_grpo
from .vineppo import vineppo

__all__ = ["g2po", "gagpo", "graphgpo", "hcapo", "hgpo", "mt_grpo", "rewardflow", "rloo", "tree_grpo", "vineppo"]
