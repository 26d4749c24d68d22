"""A batch as verl has it, in and out: golden numbers, the same credit as of sequences, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from turncredit.credit import get_credit
from turncredit.credit.sequences import sequence_credit, to_sequences, turns_from_mask
from turncredit.trainers.adapters import verl_credit

MASK = torch.tensor([[1, 1, 0, 1, 0, 0], [1, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0]])
UIDS = np.array(["b-1", "a-0", "b-1", "a-0"], dtype=object)
GROUPS = torch.tensor([1, 0, 1, 0])


class Keys(dict):
    """Knows its names by ``keys()`` alone, as a TensorDict does."""

    def __contains__(self, name: object) -> bool:
        raise NotImplementedError

    def __iter__(self) -> Any:
        raise NotImplementedError


def batch(scale: float = 1.0, mask: torch.Tensor = MASK) -> SimpleNamespace:
    """Four rows; the first and the last succeed, their reward on the last sampled token."""
    rewards = torch.zeros(4, 6)
    rewards[0, 3] = rewards[3, 4] = scale
    grid = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "response_mask": mask,
        "token_level_scores": rewards,
        "token_level_rewards": rewards.clone(),
        "old_log_probs": -0.5 - grid.remainder(5) / 10,
        "teacher_log_probs": -0.5 - grid.remainder(3) / 10,
        "input_ids": torch.zeros(4, 9),
    }
    return SimpleNamespace(batch=Keys(tensors), non_tensor_batch={"uid": UIDS, "solved": np.array([1, 0, 0, 1])})


TEACHER = {"teacher_logprobs": "teacher_log_probs"}


def test_golden_grpo() -> None:
    data = batch()
    assert verl_credit(data, "dr_grpo") is data
    half = MASK * torch.tensor([0.5, -0.5, -0.5, 0.5])[:, None]
    assert data.batch["advantages"].equal(half)
    assert data.batch["returns"].equal(half)
    assert data.batch["advantages"] is not data.batch["returns"]
    assert data.batch["advantages"].dtype == torch.float32


def test_golden_agent_opsd() -> None:
    """Row 0: gaps of its turns, teacher less student at tokens 0, 1 and 3, are 0 + 0 and 0.3: e = 0, 0.3."""
    data = verl_credit(batch(), signals=TEACHER)
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    # both revisions differ from their mean by as much as the deviation, less eps in z: w = 1 -+ 0.2 * d / (d + eps)
    b1, b2 = 0.5, 1 / (1 + np.exp(-0.3))
    d = (b2 - b1) / 2
    z = d / (d + 1e-4)
    weights = [1 - 0.2 * z, 1 + 0.2 * z]
    expected = [advantage * (1 + 0.5 * (weight - 1)) for weight in weights]
    got = data.batch["advantages"][0].tolist()
    assert got == pytest.approx([expected[0], expected[0], 0, expected[1], 0, 0], abs=1e-6)


@pytest.mark.parametrize("credit", ["agent_opsd", "agent_opsd_token", "rlsd"])
def test_the_credit_is_that_of_the_sequences(credit: str) -> None:
    data = batch()
    expected, _ = sequence_credit(
        get_credit(credit),
        MASK.bool(),
        torch.tensor([1.0, 0.0, 0.0, 1.0]),
        GROUPS,
        data.batch["old_log_probs"],
        teacher_logprobs=data.batch["teacher_log_probs"],
        step=3,
    )
    assert verl_credit(data, credit, signals=TEACHER, step=3).batch["advantages"].equal(expected)
    one = dict([*batch().batch.items(), *batch().non_tensor_batch.items()])
    assert verl_credit(one, credit, signals=TEACHER, step=3)["advantages"].equal(expected)


def test_signals_of_turns_and_other_places() -> None:
    data, turns = batch(), turns_from_mask(MASK.bool())
    data.batch["anchors"] = to_sequences(torch.tensor([0, 1, 0, 1, 2, 0, 0, 2]), turns)
    got = verl_credit(data, "gigpo", options={"discount": 1.0}, signals={"anchor_ids": "anchors"}).batch["advantages"]
    assert not got.equal(verl_credit(batch(), "dr_grpo").batch["advantages"])
    ids = batch()
    ids.batch["uid"] = torch.tensor([90, 80, 90, 80])
    del ids.non_tensor_batch["uid"]
    assert verl_credit(ids, "dr_grpo").batch["advantages"].equal(verl_credit(batch(), "dr_grpo").batch["advantages"])


def test_a_return_is_what_is_left_of_the_rewards_and_success_is_said() -> None:
    data = batch(10.0)
    with pytest.raises(
        ValueError, match="successes must be given where rewards are not all 0 or 1, got a reward of 10"
    ):
        verl_credit(data, signals=TEACHER)
    by_name = verl_credit(batch(10.0), signals=TEACHER, successes="solved").batch["advantages"]
    by_function = verl_credit(batch(10.0), signals=TEACHER, successes=lambda returns: (returns > 5).float())
    assert by_name.equal(by_function.batch["advantages"])
    # advantages are scaled by their group's deviation, and successes are as before
    torch.testing.assert_close(by_name, verl_credit(batch(), signals=TEACHER).batch["advantages"], rtol=1e-3, atol=0)
    penalised = batch()
    penalised.batch["token_level_rewards"][0, :2] = -0.25
    got = verl_credit(penalised, "dr_grpo", successes="solved").batch["advantages"]
    assert got[0, 0] == 0.25
    scored = batch()
    del scored.batch["token_level_rewards"]
    assert verl_credit(scored, "dr_grpo").batch["advantages"][0, 0] == 0.5


def test_a_wide_mask_and_two_masks() -> None:
    wide = torch.cat([torch.ones(4, 3, dtype=torch.long), MASK], 1)
    flat = (torch.arange(6)[None] < torch.tensor([5, 6, 3, 5])[:, None]).long()
    data = batch(mask=flat)
    data.batch["loss_mask"] = wide
    with pytest.raises(ValueError, match=r'mask must be named .* probably mask="loss_mask"'):
        verl_credit(data, "grpo")
    got = verl_credit(data, "grpo", mask="loss_mask").batch["advantages"]
    assert got.equal(verl_credit(batch(), "grpo").batch["advantages"])
    same = batch()
    same.batch["loss_mask"] = wide
    assert verl_credit(same, "grpo").batch["advantages"].equal(got)


def test_what_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"verl_credit: signals must hold 'teacher_logprobs', which 'agent_opsd' reads"
    ):
        verl_credit(batch())
    with pytest.raises(ValueError, match="a teacher must be left out for 'grpo', which reads none"):
        verl_credit(batch(), "grpo", signals=TEACHER)
    with pytest.raises(KeyError, match=r"data must hold 'teacher_log_prob', got .* did you mean 'teacher_log_probs'"):
        verl_credit(batch(), signals={"teacher_logprobs": "teacher_log_prob"})
    with pytest.raises(ValueError, match="lam must be a number in"):
        verl_credit(batch(), options={"lam": 2.0}, signals=TEACHER)
    with pytest.raises(ValueError, match="did you mean 'agent_opsd'"):
        verl_credit(batch(), "agentopsd")
    with pytest.raises(TypeError, match="data must be a mapping or have batch and non_tensor_batch, got list"):
        verl_credit([], "grpo")
    with pytest.raises(ValueError, match="response_mask must hold 0 and 1"):
        verl_credit(batch(mask=2 * MASK), "grpo")
    lost = batch()
    lost.batch["token_level_rewards"][1, 0] = torch.nan
    with pytest.raises(ValueError, match="token_level_rewards must be finite, got nan"):
        verl_credit(lost, "grpo")
    without = batch()
    del without.non_tensor_batch["uid"]
    with pytest.raises(KeyError, match="data must hold 'uid'"):
        verl_credit(without, "grpo")
    assert "advantages" not in list(lost.batch.keys())
