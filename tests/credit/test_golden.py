"""The golden vectors: every case of every file this library's methods claim to match, in both precisions."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from turncredit.credit import CreditInputs, get_credit, group_relative_advantages

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
VARIANTS = {
    "full": ("agent_opsd", {}),
    "no_decay": ("agent_opsd", {"gamma": 1.0}),
    "local_gap": ("agent_opsd_gap", {}),
    "unsigned": ("agent_opsd_magnitude", {}),
    "no_prior": ("agent_opsd_no_prior", {}),
    "lambda_0": ("agent_opsd", {"lam": 0.0}),
    "token_level": ("agent_opsd_token", {}),
}


@lru_cache
def cases(path: Path) -> list[dict]:
    return json.loads(path.read_text())


def batch(given: dict, dtype: torch.dtype, **more: torch.Tensor) -> CreditInputs:
    reward = torch.tensor(given["reward"], dtype=dtype)
    return CreditInputs(
        response_mask=torch.tensor(given["response_mask"]),
        trajectory_ids=torch.tensor(given["trajectory"]),
        turn_ids=torch.tensor(given["turn"]),
        group_ids=torch.tensor(given["group"]),
        rewards=reward,
        successes=(reward > 0).to(dtype),
        student_logprobs=torch.tensor(given["student_logprobs"], dtype=dtype),
        teacher_logprobs=torch.tensor(given["teacher_logprobs"], dtype=dtype),
        **more,
    )


def close(got: torch.Tensor, expected: list, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    want = torch.tensor(expected, dtype=torch.float64)
    assert got.shape == want.shape
    torch.testing.assert_close(got.double(), want, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", range(16))
def test_grpo(shared_dir: Path, index: int, dtype: torch.dtype) -> None:
    case = cases(shared_dir / "golden/grpo.json")[index]
    given = case["inputs"]
    got = group_relative_advantages(
        torch.tensor(given["reward"], dtype=dtype),
        torch.tensor(given["group"]),
        turn_counts=torch.tensor(given["turns"]),
        **case["options"],
    )
    close(got, case["expected"]["advantage"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", range(29))
def test_agent_opsd(shared_dir: Path, index: int, dtype: torch.dtype) -> None:
    case = cases(shared_dir / "golden/agent_opsd.json")[index]
    name, options = VARIANTS[case["options"]["variant"]]
    credit = get_credit(name, **options)(batch(case["inputs"], dtype))
    close(credit.advantages, case["expected"]["token_advantages"], dtype)
    if "turn_weights" in case["expected"]:
        close(credit.turn_weights, case["expected"]["turn_weights"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", range(4))
def test_rlsd(shared_dir: Path, index: int, dtype: torch.dtype) -> None:
    case = cases(shared_dir / "golden/rlsd.json")[index]
    credit = get_credit("rlsd", lam=case["options"]["lam"], band=case["options"]["clip"])(batch(case["inputs"], dtype))
    close(credit.advantages, case["expected"]["token_advantages"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", range(16))
def test_step_opsd(shared_dir: Path, index: int, dtype: torch.dtype) -> None:
    case = cases(shared_dir / "golden/step_opsd.json")[index]
    options = case["options"]
    method = get_credit(
        "step_opsd",
        lam=options["lambda_mix"],
        band=options["alpha_clip"],
        step_normalization=options["step_normalization"],
    )
    credit = method(batch(case["inputs"], dtype, span_mask=torch.tensor(case["inputs"]["span_mask"])))
    close(credit.advantages, case["expected"]["token_advantages"], dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("index", range(4))
def test_gigpo(shared_dir: Path, index: int, dtype: torch.dtype) -> None:
    case = cases(shared_dir / "golden/gigpo.json")[index]
    inputs = batch(case["inputs"], dtype, anchor_ids=torch.tensor(case["inputs"]["anchor_state"]))
    credit = get_credit("gigpo", **case["options"])(inputs)
    expected = torch.tensor(case["expected"]["turn_advantages"], dtype=torch.float64)[:, None] * inputs.response_mask
    close(credit.advantages, expected.tolist(), dtype)
