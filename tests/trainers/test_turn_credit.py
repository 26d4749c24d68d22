"""What a plan of credit for another trainer refuses when it is made; needs no TRL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turncredit.trainers.adapters import TurnCredit, TurnCreditMixin, refusals

OPTIONS = {
    "loss_type": "dapo",
    "importance_sampling_level": "token",
    "off_policy_mask_threshold": None,
    "mask_truncated_completions": False,
    "multi_objective_aggregation": "sum_then_normalize",
    "scale_rewards": "group",
}
"""TRL's defaults."""
PLAN = TurnCredit(privileged="hint")


def refused(kind: type[Exception], text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(kind, match=text):
        TurnCredit(*arguments, **options)


def test_a_plan_is_checked_when_it_is_made() -> None:
    score = {"teacher_logprobs": lambda batch: batch.student_logprobs}
    assert TurnCredit("agent_opsd", {"lam": 1.0}, signals=score).method.options["lam"] == 1.0
    refused(ValueError, "did you mean 'agent_opsd'", "agent_ops", privileged="hint")
    refused(TypeError, "did you mean 'gamma'", options={"gama": 1.0}, privileged="hint")
    refused(ValueError, "gamma must be a number in", options={"gamma": 2.0}, privileged="hint")
    refused(ValueError, r"signals must hold 'teacher_logprobs', .* pass privileged, or score", "agent_opsd")
    refused(ValueError, "must be made once, got privileged and signals", privileged="hint", signals=score)
    refused(ValueError, "a teacher must be left out for 'grpo'", "grpo", privileged="hint")
    refused(ValueError, "a teacher must be left out for 'grpo'", "grpo", signals=score)
    refused(ValueError, "signals must hold 'anchor_ids', which 'gigpo' reads, got .*; number the", "gigpo")
    refused(ValueError, "must be one of .* got 'anchor'", "gigpo", signals={"anchor": len})
    refused(TypeError, "must be functions of a RolloutBatch, got str for", "gigpo", signals={"anchor_ids": "column"})
    refused(
        ValueError,
        "credit must read tensors alone, got 'align_opsd' with 'correspondence'",
        "align_opsd",
        privileged="hint",
    )


def test_a_plan_keeps_its_own_options() -> None:
    options = {"scale_rewards": False}
    plan = TurnCredit("grpo", options)
    options["scale_rewards"] = True
    assert plan.method.options["scale_rewards"] is False


def test_options_of_trl_under_which_credit_would_be_lost_are_refused() -> None:
    refusals.check_options(SimpleNamespace(**OPTIONS), PLAN)
    for loss in ("grpo", "bnpo", "dr_grpo", "cispo", "sapo"):
        refusals.check_options(SimpleNamespace(**{**OPTIONS, "loss_type": loss}), PLAN)
    wrong = {
        "loss_type": ("vespo", "luspo"),
        "importance_sampling_level": ("sequence",),
        "off_policy_mask_threshold": (0.1,),
        "mask_truncated_completions": (True,),
        "multi_objective_aggregation": ("normalize_then_sum",),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=f"TurnCreditMixin: {name} must be .*got {value!r}: "):
                refusals.check_options(SimpleNamespace(**{**OPTIONS, name: value}), PLAN)


def test_trl_s_scaling_may_not_say_otherwise_than_the_credit_s() -> None:
    def check(scale: Any, plan: TurnCredit) -> None:
        refusals.check_options(SimpleNamespace(**{**OPTIONS, "scale_rewards": scale}), plan)

    unscaled = TurnCredit("dr_grpo")
    for scale in ("group", True, "none", False):
        check(scale, unscaled)
    check(True, TurnCredit("grpo"))
    for scale in ("none", False):
        with pytest.raises(
            ValueError, match=r"got 'none' with 'grpo'; pass TurnCredit\('grpo', {\"scale_rewards\": False}"
        ):
            check(scale, TurnCredit("grpo"))
    anchors = TurnCredit("gigpo", signals={"anchor_ids": len})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="got 'none' with 'gigpo'; leave it at its default"):
        check("none", anchors)
    with pytest.raises(ValueError, match="got 'batch' with 'dr_grpo'"):
        check("batch", unscaled)


def test_another_version_or_no_trl_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer(TurnCreditMixin, dict):
        pass

    monkeypatch.setattr(refusals, "installed_version", lambda: "1.17.0")
    with pytest.raises(ValueError, match=r"trl must be 1\.16\.0, whose internals it replaces, got 1\.17\.0"):
        Trainer(turn_credit=PLAN)
    monkeypatch.setattr(refusals, "installed_version", lambda: refusals.VERSION)
    with pytest.raises(TypeError, match="turn_credit must be a TurnCredit, got str"):
        Trainer(turn_credit="agent_opsd")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must come from TRL's GRPOTrainer, got Trainer"):
        Trainer(turn_credit=PLAN)
    monkeypatch.undo()

    def absent(name: str) -> str:
        raise refusals.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(refusals.importlib.metadata, "version", absent)
    with pytest.raises(ImportError, match=r'trl must be installed, got none; pip install "trl==1\.16\.0"'):
        Trainer(turn_credit=PLAN)
