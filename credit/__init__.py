"""Credit functions: which turn earned the reward? Tensors in, tensors out.

Here are the batch, its signals, and the methods. AlignOPSD's pieces are in :mod:`~turncredit.credit.align`, those of
AgentOPSD in :mod:`~turncredit.credit.agent`, those of posterior credit in :mod:`~turncredit.credit.posterior`, methods
with one more signal in :mod:`~turncredit.credit.learned`, others to compare with in
:mod:`~turncredit.credit.baselines`; synthetic truth, fidelity and pictures in :mod:`~turncredit.credit.lab`.
"""

from . import baselines  # noqa: F401  registers them
from .agent import agent_opsd
from .align import align_opsd
from .gigpo import gigpo
from .groups import group_relative_advantages
from .grpo import grpo
from .inputs import Credit, CreditInputs
from .learned import turn_gae as turn_gae
from .metrics import Mean
from .posterior import posterior
from .registry import CreditMethod, get_credit, list_credits, register_credit
from .rlsd import rlsd
from .signals import register_signal
from .step_opsd import step_opsd

__all__ = [
    "Credit",
    "CreditInputs",
    "CreditMethod",
    "Mean",
    "agent_opsd",
    "align_opsd",
    "get_credit",
    "gigpo",
    "group_relative_advantages",
    "grpo",
    "list_credits",
    "posterior",
    "register_credit",
    "register_signal",
    "rlsd",
    "step_opsd",
]
