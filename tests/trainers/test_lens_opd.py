"""LENS-OPD in training: depth, paired continuations, gates, guidance rows, ablations, several options, exact resume."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer, get_method

ABLATIONS = ("fixed_clock", "last_turn", "no_internalization", "no_token_focus")


def make(folder, credit="lens_opd", teacher=None, max_steps=4, **options):
    own = {"cue": "privileged", "eta": 1.0, "horizon": 2, **options} if credit.startswith("lens") else options
    config = GRPOConfig(
        output_dir=str(folder),
        credit=credit,
        credit_options=own,
        max_steps=max_steps,
        num_tasks=4,
        num_generations=4,
        num_workers=0,
        num_minibatches=2,
        learning_rate=1e-2,
        sampling=SamplingConfig(max_completion_length=6),
        eval_steps=0,
        save_steps=0,
        num_eval_tasks=1,
        preflight=False,
    )
    return GRPOTrainer(
        tiny_model(), tiny_tokenizer(), ToySuite(num_tasks=8, lenient=True), config, teacher_model=teacher
    )


def another():
    return tiny_model(3, hidden_size=48)


def weights(run):
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("evaluator", ["likelihood", "return"])
@pytest.mark.parametrize("model", [False, True])
def test_what_an_update_does(tmp_path, model, evaluator):
    with make(tmp_path, teacher=another() if model else None, evaluator=evaluator) as run:
        plays = []
        rollout = run.run.rollout
        run.run.rollout = lambda starts: plays.append((list(starts), rollout(starts))) or plays[-1][1]
        first = run.train_step()
        (_, ordinary), (starts, played) = plays
        assert max(len(t.turns) for t in ordinary) == 1
        assert first["method/depth"] == 1
        assert first["method/cues"] == len(ordinary) == len(starts) / 2
        assert first["method/failed_cues"] == first["method/incomplete_pairs"] == 0
        for plain, hinted in zip(played[::2], played[1::2], strict=True):
            assert plain.turns[0].prompt_ids != hinted.turns[0].prompt_ids
            assert len(plain.turns) <= 2
        rows, terms = run.run.extra[0]
        helped = round(first["method/hints_that_help"] * first["method/cues"])
        assert len(rows.prompts) == helped
        assert [term.name for term in terms] == ["guidance"]
        assert ("train/guidance_loss" in first) == (helped > 0)
        kept = run.run.signals["token_weights"]
        mask = run.run.batch.response_mask
        torch.testing.assert_close((kept * mask).sum(1), mask.sum(1).float(), rtol=0, atol=1e-4)
        second = run.train_step()
        assert second["method/depth"] == 2  # eta 1: one batch a depth


def test_continuations_stay_out_of_the_base_loss(tmp_path):
    """Where no hint helps and nothing is focused it is OPD at that depth, bit for bit."""
    with make(tmp_path / "lens", evaluator="return") as run:
        rollout = run.run.rollout
        run.run.rollout = lambda starts: [replace(played, reward=0.0) for played in rollout(starts)]
        metrics = run.train_step()
        assert metrics["method/hints_that_help"] == 0
        assert run.run.extra[0][0].prompts == []
        trained = weights(run)
    with make(tmp_path / "plain", "tcod_f2b") as run:
        run.train_step()
        assert equal(trained, weights(run))


def test_ablations_leave_their_part_out(tmp_path):
    with make(tmp_path / "a", "lens_opd_no_internalization") as run:
        run.train_step()
        assert run.run.extra == []
    with make(tmp_path / "b", "lens_opd_no_token_focus") as run:
        run.train_step()
        assert bool((run.run.signals["token_weights"] == 1).all())
    assert get_method("lens_opd_fixed_clock").state["depth"].fixed_clock
    assert not get_method("lens_opd").state["depth"].fixed_clock
    for name in ABLATIONS:
        assert get_method(f"lens_opd_{name}").options.keys() == get_method("lens_opd").options.keys()


def test_the_teacher_writes_its_cue(tmp_path):
    with make(tmp_path, teacher=another(), cue="teacher") as run:
        metrics = run.train_step()
    assert metrics["method/cues"] + metrics["method/failed_cues"] == 16


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    with make(tmp_path / "whole") as run:
        run.train()
        whole, depth = weights(run), run.method.state["depth"].state_dict()
    with make(tmp_path / "parts") as run:
        while run.step < 2:
            run.train_step()
        run.save()
    torch.manual_seed(7)
    with make(tmp_path / "parts") as run:
        run.train(resume_from=True)
        assert equal(whole, weights(run))
        assert str(run.method.state["depth"].state_dict()) == str(depth)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cue": "self"}, "cue"),
        ({"evaluator": "reward"}, "evaluator"),
        ({"horizon": 0}, "horizon"),
        ({"tau": 0.0}, "tau"),
        ({"cap": 0.5}, "cap"),
        ({"k_start": 0}, "k_start"),
        ({"guidance": float("nan")}, "guidance"),
    ],
)
def test_refusals(options, message):
    with pytest.raises((ValueError, TypeError), match=f"lens_opd: {message}"):
        get_method("lens_opd", **options)
