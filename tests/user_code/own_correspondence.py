"""A credit function that reads AlignOPSD's correspondence and has options of its own."""

import torch

from turncredit.credit import Credit, CreditInputs, grpo, register_credit


@register_credit("sibling_support", requires=("correspondence",))
def sibling_support(inputs: CreditInputs, *, bonus: float = 0.5, similarity_threshold: float = 0.1) -> Credit:
    """GRPO, more of it where a sibling's decision supports the turn."""
    base = grpo(inputs)
    supported = torch.bincount(inputs.correspondence.sources.target, minlength=inputs.num_rows)
    weights = 1 + bonus * (supported > 0)
    return Credit(base.advantages * weights[:, None], weights, {"supported": float((supported > 0).float().mean())})
