"""VinePPO and Tree-GRPO in training: what is played on, which turns are trained, what is refused."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import EpisodeStart, SamplingConfig
from turncredit.rollout.branching import states_of
from turncredit.trainers import GRPOCallback, GRPOConfig, GRPOTrainer, Method, get_method, register_method
from turncredit.trainers.methods import registry
from turncredit.trainers.methods.branches import of_all


class Look(GRPOCallback):
    def __init__(self):
        self.seen = []

    def on_rollout(self, trainer, trajectories):
        self.trajectories = trajectories

    def on_credit(self, trainer, inputs, credit):
        self.seen.append((self.trajectories, inputs, credit))


def make(tmp_path, credit, callbacks=(), **options):
    config = GRPOConfig(
        output_dir=str(tmp_path),
        credit=credit,
        credit_options=options,
        num_tasks=4,
        num_generations=6,
        num_workers=0,
        learning_rate=1e-2,
        sampling=SamplingConfig(max_completion_length=6),
        num_eval_tasks=1,
        preflight=False,
    )
    suite = ToySuite(num_tasks=8, lenient=True)
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, callbacks=callbacks)


def train_step(tmp_path, credit, **options):
    look = Look()
    with make(tmp_path, credit, [look], **options) as run:
        before = [p.clone() for p in run.model.parameters()]
        metrics = run.train_step()
        assert any(not torch.equal(old, new) for old, new in zip(before, run.model.parameters(), strict=True))
    return metrics, *look.seen[0]


def test_vineppo_measures_every_turn(tmp_path):
    metrics, _, inputs, credit = train_step(tmp_path, "vineppo", continuations=2, invalid_penalty=0.0)
    values = inputs.signal("branch_advantages")
    assert metrics["method/failed_continuations"] == metrics["method/turns_without_value"] == 0
    assert metrics["method/continued_turns"] >= metrics["method/continuations"] > 0
    assert torch.equal(credit.advantages[:, 0], values)
    first, last = inputs.turn_ids == 0, inputs.turn_ids == inputs.turn_counts[inputs.trajectory_ids] - 1
    won = inputs.successes[inputs.trajectory_ids] > 0
    assert bool((values[last & won] >= 0).all())  # the last turn of a success gets 1 less a chance
    assert len(set(values[first].tolist())) > 1
    steps = (values * 2).round() - values * 2
    assert float(steps.abs().max()) < 1e-6  # halves, as of two continuations each


def test_trees_grow_and_shared_turns_are_trained_once(tmp_path):
    metrics, trajectories, inputs, _ = train_step(tmp_path, "tree_grpo", trees=2)
    assert len(trajectories) == 4 * 6
    groups = [[t for t in trajectories if t.group_id == group] for group in range(4)]
    assert all([t.rollout_index for t in group] == list(range(6)) for group in groups)
    branched = [t for t in trajectories if t.replayed]
    assert branched
    assert metrics["method/shared_turns"] > 0
    for branch in branched:
        tree = [t for t in groups[branch.group_id] if t.rollout_index % 2 == branch.rollout_index % 2]
        prefix = branch.turns[: branch.replayed]
        assert any(t is not branch and t.turns[: branch.replayed] == prefix for t in tree)
    for trajectory in trajectories:  # a branch shares a turn wherever its tree had one to share
        earlier = groups[trajectory.group_id][trajectory.rollout_index % 2 : trajectory.rollout_index : 2]
        assert bool(trajectory.replayed) == any(len(t.turns) > max(t.replayed, 1) for t in earlier)
    assert inputs.signal("tree_ids").tolist() == [t.rollout_index % 2 for t in trajectories]
    assert inputs.num_rows == sum(len(t.turns) - t.replayed for t in trajectories)
    rows = 0
    for trajectory in trajectories:
        taken = [(key, turn.response_ids) for key, turn in zip(states_of(trajectory), trajectory.turns, strict=True)]
        for turn in range(trajectory.replayed, len(trajectory.turns)):
            tree = [
                t.reward
                for t in groups[trajectory.group_id]
                if t.rollout_index % 2 == trajectory.rollout_index % 2
                and len(t.turns) > turn
                and (states_of(t)[turn], t.turns[turn].response_ids) == taken[turn]
            ]
            assert float(inputs.signal("leaf_returns")[rows]) == pytest.approx(sum(tree) / len(tree))
            rows += 1


def test_options_are_checked():
    assert get_method("tree_grpo", trees=3).options["trees"] == 3
    with pytest.raises(ValueError, match="tree_grpo: trees must be a whole number of at least 1, got 0"):
        get_method("tree_grpo", trees=0)
    assert get_method("vineppo", continuations=3).options["continuations"] == 3
    for wrong in (0, 1.5, "4", True):
        with pytest.raises((TypeError, ValueError), match="continuations must be a whole number of at least 1"):
            get_method("vineppo", continuations=wrong)


class OneOfTwo:
    """A run of two processes, of which the other one says `others`."""

    def __init__(self, others):
        self.others, self.method = others, Method("grpo", name="mine")

    def all_gather(self, values):
        return [*values, *self.others]


def test_an_error_of_one_process_is_raised_on_all():
    def broken():
        raise OSError("here")

    assert of_all(OneOfTwo([False]), lambda: 3) == 3
    with pytest.raises(RuntimeError, match="mine: another process failed"):
        of_all(OneOfTwo([True]), lambda: 3)
    for others in ([False], [True]):
        with pytest.raises(OSError, match="here"):
            of_all(OneOfTwo(others), broken)


def test_rollouts_of_a_method_that_fail_are_shared_as_an_error(tmp_path):
    """Other processes are told: what is raised is on the list of errors that all processes raise."""
    with mock.patch.dict(registry._METHODS):

        @register_method("crowded")
        def crowded():
            return Method("grpo", rollouts=lambda tasks, run: run.rollout([EpisodeStart(t, 0, 0) for t in tasks]))

        with make(tmp_path, "crowded") as run:
            with pytest.raises(ValueError, match="crowded: rollouts must give every trajectory a place") as raised:
                run.train_step()
            assert run.shared_errors == [raised.value]
