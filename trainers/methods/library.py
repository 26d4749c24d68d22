"""The library's methods that are more than a credit function; AlignOPSD's are in `.align_opsd`."""

from __future__ import annotations

from ...credit import CreditInputs, CreditMethod, get_credit, posterior, step_opsd
from ...credit.baselines import hcapo
from ...credit.posterior import facts_of
from ..terms import SDARTerm, SkillSDTerm
from .method import Method, Teacher
from .registry import goes_with, register_method
from .run import Run


def with_the_others(credit: CreditMethod, inputs: CreditInputs | None, run: Run) -> CreditMethod:
    """Posterior credit is fitted to the whole batch, so to the turns of all processes; collective."""
    if run.num_processes == 1:
        return credit
    options = {name: credit.options[name] for name in ("use", "outcome_discount")}
    facts = run.all_gather([None if inputs is None else facts_of(inputs, **options)])
    del facts[run.accelerator.process_index]
    others = [other for other in facts if other is not None]
    return get_credit(credit.name, **{**credit.options, "others": others})


goes_with(step_opsd, teacher=Teacher("stale", refresh_every=10, context="hindsight"))
goes_with(hcapo, teacher=Teacher("current", context="hindsight"))
goes_with(posterior, settle=with_the_others)


@register_method("skill_grpo")
def skill_grpo() -> Method:
    """GRPO on prompts that hold the skill; evaluated without and with it."""
    return Method("grpo", student_context="privileged")


@register_method("sdar")
def sdar(*, coef: float = 0.01, beta: float = 5.0) -> Method:
    """GRPO and a distillation term that is gated by the token gap. Source: SDAR (arXiv 2605.15155).

    Args:
        coef: of the distillation term.
        beta: steepness of the gate, per nat of the gap.
    """
    return Method("grpo", (SDARTerm(coef=coef, beta=beta),))


@register_method("grpo_opsd")
def grpo_opsd(*, coef: float = 0.01) -> Method:
    """GRPO and OPSD's distillation term, SDAR's without a gate. Source: OPSD (arXiv 2601.18734).

    Args:
        coef: of the distillation term.
    """
    return Method("grpo", (SDARTerm("opsd", coef=coef, beta=0.0),))


@register_method("opsd")
def opsd(*, coef: float = 0.01) -> Method:
    """OPSD alone: no policy gradient; GRPO's advantages decide which rows have KL and entropy.

    Args:
        coef: of the distillation term.
    """
    return Method("grpo", (SDARTerm("opsd", coef=coef, beta=0.0),), policy_weight=0.0)


@register_method("skill_sd")
def skill_sd(*, coef: float = 0.001) -> Method:
    """GRPO and an importance-weighted k3 towards the teacher. Source: Skill-SD (arXiv 2604.10674).

    Args:
        coef: of the distillation term.
    """
    return Method("grpo", (SkillSDTerm(coef=coef),))
