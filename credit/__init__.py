"""Credit functions: which turn earned the reward? Tensors in, tensors out."""

from .agent_opsd import agent_opsd
from .groups import group_relative_advantages
from .grpo import grpo
from .inputs import Credit, CreditInputs
from .registry import CreditMethod, get_credit, list_credits, register_credit

__all__ = [
    "Credit",
    "CreditInputs",
    "CreditMethod",
    "agent_opsd",
    "get_credit",
    "group_relative_advantages",
    "grpo",
    "list_credits",
    "register_credit",
]
