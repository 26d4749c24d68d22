"""Credit functions: which turn earned the reward? Tensors in, tensors out."""

from .inputs import Credit, CreditInputs

__all__ = ["Credit", "CreditInputs"]
