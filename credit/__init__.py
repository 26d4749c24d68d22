"""Credit functions: which turn earned the reward? Tensors in, tensors out."""

from .agent_opsd import agent_opsd
from .align_opsd import align_opsd
from .beliefs import belief_revisions
from .gigpo import gigpo, similarity_anchors
from .groups import group_relative_advantages
from .grpo import grpo
from .inputs import Credit, CreditInputs
from .registry import CreditMethod, get_credit, list_credits, register_credit
from .rlsd import rlsd
from .step_opsd import step_opsd

__all__ = [
    "Credit",
    "CreditInputs",
    "CreditMethod",
    "agent_opsd",
    "align_opsd",
    "belief_revisions",
    "get_credit",
    "gigpo",
    "group_relative_advantages",
    "grpo",
    "list_credits",
    "register_credit",
    "rlsd",
    "similarity_anchors",
    "step_opsd",
]
