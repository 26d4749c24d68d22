import math

import pytest

from turncredit.rollout import StopReason, Trajectory, Turn


def turn(**changes):
    fields = {
        "prompt_ids": (1, 2),
        "response_ids": (3, 4),
        "logprobs": (-0.5, -0.25),
        "messages": ({"role": "user", "content": "hello"},),
        "response": "hi there",
    }
    return Turn(**{**fields, **changes})


def trajectory(**changes):
    fields = {
        "task_id": "t",
        "task_type": "pick",
        "group_id": 0,
        "rollout_index": 0,
        "turns": (turn(),),
        "reward": 1.0,
        "success": 1.0,
        "stop_reason": StopReason.SUCCESS,
    }
    return Trajectory(**{**fields, **changes})


def test_lists_become_tuples_and_reasons_become_members():
    record = turn(prompt_ids=[1], response_ids=[2], logprobs=[-1.0], stop_reason="length", action_tokens=[0, 1])
    assert record.prompt_ids == (1,)
    assert record.action_tokens == (0, 1)
    assert record.stop_reason is StopReason.LENGTH
    assert trajectory(turns=[record]).turns == (record,)
    assert trajectory(turns=[record, turn()]).num_tokens == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"logprobs": (-0.5,)}, "logprobs must have one value per response id, got 1 for 2"),
        ({"response_ids": (), "logprobs": ()}, "response_ids must not be empty"),
        ({"prompt_ids": ()}, "prompt_ids must not be empty"),
        ({"logprobs": (math.nan, 0.0)}, "logprobs must be finite"),
        ({"reward": math.inf}, "reward must be finite, got inf"),
        ({"action_tokens": (1, 3)}, r"action_tokens must lie inside the response of 2 tokens, got \(1, 3\)"),
    ],
)
def test_a_bad_turn_names_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        turn(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": math.nan}, "reward must be finite, got nan for task 't'"),
        ({"success": 10.0}, r"success must lie in \[0, 1\], got 10.0"),
        ({"turns": ()}, "turns must not be empty for task 't'"),
    ],
)
def test_a_bad_trajectory_names_the_field(changes, message):
    with pytest.raises(ValueError, match=message):
        trajectory(**changes)


def test_a_failed_trajectory_may_be_empty():
    record = trajectory(turns=(), failure="worker_died", reward=0.0, success=0.0, stop_reason="env_failure")
    assert record.num_tokens == 0


SAYS = {"role": "assistant", "content": "hi"}


def test_an_imported_turn_may_have_no_ids_and_no_other_may():
    bare = turn(prompt_ids=(), response_ids=(), logprobs=(), message=SAYS)
    assert not bare.tokenized
    assert turn(message=SAYS).tokenized
    for changes, missing in [
        ({"prompt_ids": ()}, "prompt_ids"),
        ({"response_ids": (), "logprobs": ()}, "response_ids"),
    ]:
        with pytest.raises(ValueError, match=f"{missing} must not be empty"):
            turn(message=SAYS, **changes)
    with pytest.raises(ValueError, match="response_ids must not be empty"):
        turn(prompt_ids=(), response_ids=(), logprobs=())


def test_the_teachers_log_probs_are_those_of_the_same_ids():
    assert turn(teacher_logprobs=[-1.0, -2.0]).teacher_logprobs == (-1.0, -2.0)
    for wrong in ((-1.0,), (-1.0, math.inf)):
        with pytest.raises(ValueError, match="teacher_logprobs must have one finite value per response id"):
            turn(teacher_logprobs=wrong)
