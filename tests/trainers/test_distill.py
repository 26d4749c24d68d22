"""On-policy distillation in training: towards a hinted self and towards another model, and what is refused."""

from __future__ import annotations

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer, get_method
from turncredit.trainers.methods.distill import sampled_kl_loss


def make(folder, credit, teacher=None, **options):
    config = GRPOConfig(
        output_dir=str(folder),
        credit=credit,
        credit_options=options,
        max_steps=4,
        num_tasks=4,
        num_generations=4,
        num_workers=0,
        learning_rate=1e-2,
        sampling=SamplingConfig(max_completion_length=6),
        eval_steps=0,
        save_steps=0,
        num_eval_tasks=1,
        preflight=False,
    )
    suite = ToySuite(num_tasks=8, lenient=True)
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, config, teacher_model=teacher)


@pytest.mark.parametrize("estimator", ["full", "sampled"])
def test_a_policy_comes_nearer_to_another_model(tmp_path, estimator):
    with make(tmp_path, "opd", tiny_model(3, hidden_size=48), estimator=estimator) as run:
        kls = [run.train_step()["train/opd_loss"] for _ in range(4)]
    assert kls[-1] < 0.9 * kls[0]


def test_the_first_loss_is_the_mean_over_tokens(tmp_path):
    with make(tmp_path, "opd") as run:
        phase, kept = run.phase, []
        run.phase = lambda *a: kept.append(phase(*a)) or kept[-1]
        metrics = run.train_step()
        (result,) = kept
    student, expected, count = tiny_model(), 0.0, 0
    rows, texts = run.run.batch, run.run.teacher_prompts()
    for prompt, told, response in zip(rows.prompts, texts, rows.responses, strict=True):
        with torch.no_grad():
            logs = [
                student(torch.tensor([[*start, *response]])).logits[0, len(start) - 1 : -1].log_softmax(-1)
                for start in (prompt, told)
            ]
        expected += float((logs[0].exp() * (logs[0] - logs[1])).sum())
        count += len(response)
    assert metrics["train/opd_loss"] == pytest.approx(expected / count, rel=1e-3)
    assert bool((result.rows.advantages == 0).all())


def test_depth_grows_and_ends_episodes(tmp_path):
    with make(tmp_path, "tcod_f2b", k_start=1, eta=1) as run:
        turns = []
        for step in range(3):
            metrics = run.train_step()
            turns.append(max(len(t.turns) for t in run.run.batch.trajectories))
            assert metrics["method/depth"] == step + 1
    assert turns == [1, 2, 3]


def test_sampled_estimator_by_hand():
    # rho e^0.1, gap -0.5 - -1: value and, through rho, gradient
    logp = torch.tensor([-0.5], requires_grad=True)
    loss = sampled_kl_loss(logp, torch.tensor([-1.0]), torch.tensor([-0.6]))
    assert loss.item() == pytest.approx(0.5 * 2.718281828**0.1)
    loss.backward()
    assert logp.grad.item() == pytest.approx(loss.item())


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match=r"opd: estimator must be one of \('full', 'sampled'\), got 'top'"):
        get_method("opd", estimator="top")
    with pytest.raises(ValueError, match="tcod_f2b: eta must be a whole number of at least 1, got 0"):
        get_method("tcod_f2b", eta=0)
    with (
        make(tmp_path, "opd", teacher="stale") as run,
        pytest.raises(ValueError, match="opd: teacher must be the policy as it is, or another model"),
    ):
        run.train()
