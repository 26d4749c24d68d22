import pytest
import torch

from turncredit.rollout import StopReason, Trajectory, Turn
from turncredit.trainers.batch import anchor_ids, make_batch, span_mask, usable


def turn(length, **changes):
    fields = {"observation": "door", "action_tokens": (length - 1, length), "thinking_tokens": (0, 1)}
    ids = tuple(range(10, 10 + length))
    logprobs = tuple(-0.1 * i for i in range(length))
    return Turn((1, 2), ids, logprobs, ({"role": "user", "content": "x"},), "r", **{**fields, **changes})


def trajectory(turns, group=0, rollout=0, failure=None):
    return Trajectory("task", "pick", group, rollout, tuple(turns), 0.0, 0.0, StopReason.DONE, failure)


BATCH = make_batch([trajectory([turn(3), turn(1)]), trajectory([turn(2, observation="key")], group=4, rollout=1)])


def test_layout_by_hand():
    assert BATCH.trajectory_ids.tolist() == [0, 0, 1]
    assert BATCH.turn_ids.tolist() == [0, 1, 0]
    assert BATCH.group_ids.tolist() == [0, 4]
    assert BATCH.response_mask.int().tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    expected = torch.tensor([[0.0, -0.1, -0.2], [0.0, 0.0, 0.0], [0.0, -0.1, 0.0]])
    torch.testing.assert_close(BATCH.sampled_logprobs, expected)
    assert BATCH.responses[0] == (10, 11, 12)


def test_spans():
    assert span_mask(BATCH, "action_only").int().tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert span_mask(BATCH, "clean_step").int().tolist() == [[1, 0, 1], [1, 0, 0], [1, 1, 0]]
    bare = make_batch([trajectory([turn(3, action_tokens=None, thinking_tokens=None)])])
    assert not span_mask(bare, "clean_step").any()
    with pytest.raises(ValueError, match='kind must be "action_only" or "clean_step"'):
        span_mask(BATCH, "everything")


def test_anchors_are_per_group():
    batch = make_batch(
        [
            trajectory([turn(1), turn(1, observation="key")]),
            trajectory([turn(1, anchor="door")], rollout=1),
            trajectory([turn(1)], group=1),
        ]
    )
    ids = anchor_ids(batch).tolist()
    assert ids[0] == ids[2]
    assert len({ids[0], ids[1], ids[3]}) == 3


def test_failed_trajectories_stay_out():
    failed = trajectory([turn(1)], failure="worker_died")
    good = trajectory([turn(1)])
    assert usable([failed, good]) == [good]
    with pytest.raises(ValueError, match="must not be failed ones"):
        make_batch([failed])


def test_no_rows_at_all():
    batch = make_batch([])
    assert batch.response_mask.shape == (0, 0)
    assert batch.turns == ()
