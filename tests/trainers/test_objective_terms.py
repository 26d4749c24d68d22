"""Terms of the objective one by one: gradients by formula and by differences, and what a step reports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from helpers.gradient_cases import BOUND, VALUE, Pull, config, make_rows
from helpers.tiny import tiny_model

from turncredit.rollout import PolicyScorer
from turncredit.trainers import LossTerm
from turncredit.trainers.losses import skill_sd_loss
from turncredit.trainers.metrics import join_steps
from turncredit.trainers.optimization import accumulate_gradients
from turncredit.trainers.terms import EntropyTerm, KLTerm, PolicyTerm, SDARTerm, check_terms, objective


def test_skill_sd_gradient_is_that_of_the_whole_product():
    """d/d log pi of rho k3 with rho = pi / pi_old not detached: rho (k3 + 1 - e^-l) = rho l."""
    values = ([-1.0, -2.0, -0.3], [-0.5, -2.5, -0.3], [-1.2, -1.0, -0.3])
    now, teacher, old = (torch.tensor(v, dtype=torch.float64) for v in values)
    now.requires_grad_()
    skill_sd_loss(now, teacher, old).sum().backward()
    gap, ratio = (now - teacher).detach(), (now - old).detach().exp()
    torch.testing.assert_close(now.grad, ratio * gap)
    step = 1e-6
    for index in range(3):
        moved = [now.detach().clone() for _ in range(2)]
        moved[0][index] += step
        moved[1][index] -= step
        up, down = (skill_sd_loss(value, teacher, old).sum() for value in moved)
        assert float((up - down) / (2 * step)) == pytest.approx(float(now.grad[index]), rel=1e-5, abs=1e-8)


def test_skill_sd_in_expectation_is_the_gradient_of_the_reverse_kl():
    """Tokens from pi_old, weights rho: the mean gradient is that of sum_y pi k3, and so of KL(pi || pi_T)."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    values = ([0.0, 0.4, 0.1, -0.3], [1.0, 0.0, 0.2, 0.4])
    old, teacher = (torch.tensor(v, dtype=torch.float64).log_softmax(0) for v in values)
    now = logits.log_softmax(0)
    (got,) = torch.autograd.grad((old.exp() * skill_sd_loss(now, teacher, old)).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((now.exp() * (now - teacher)).sum(), logits)
    torch.testing.assert_close(got, expected)


def test_join_steps_by_hand():
    steps = [
        {"ratio": 1.0, "kl": 3.0, "loss": 2.0, "grad_norm": 4.0, "policy_loss": 6.0, "auxiliary_loss": 1.0,
         "num_tokens": 3.0, "policy_denominator": 1.0, "auxiliary_denominator": 5.0},
        {"ratio": 5.0, "loss": 4.0, "grad_norm": 0.0, "policy_loss": 2.0, "auxiliary_loss": 3.0, "num_tokens": 1.0,
         "policy_denominator": 3.0, "auxiliary_denominator": 15.0},
    ]  # fmt: skip
    assert join_steps(steps) == {
        "ratio": 2.0,  # (3 x 1 + 1 x 5) / 4
        "kl": 3.0,
        "loss": 3.0,
        "grad_norm": 2.0,
        "policy_loss": 3.0,  # (1 x 6 + 3 x 2) / 4
        "auxiliary_loss": 2.5,  # (5 x 1 + 15 x 3) / 20
        "num_tokens": 4.0,
    }
    assert join_steps([]) == {}
    steps = [
        {"kl": 2.0, "kl_loss": 2.0, "kl_denominator": 1.0, "a_loss": 1.0, "a_denominator": 1.0, "b_loss": 4.0,
         "b_denominator": 3.0, "auxiliary_loss": 5.0, "num_tokens": 1.0},
        {"kl": 4.0, "kl_loss": 4.0, "kl_denominator": 3.0, "a_loss": 5.0, "a_denominator": 3.0, "b_loss": 0.0,
         "b_denominator": 1.0, "auxiliary_loss": 5.0, "num_tokens": 1.0},
    ]  # fmt: skip
    joined = join_steps(steps, ["a", "b"])
    assert joined["kl"] == 3.0  # by tokens, although a loss of that name has a denominator
    assert joined["kl_loss"] == 3.5
    assert joined["auxiliary_loss"] == joined["a_loss"] + joined["b_loss"] == 4.0 + 3.0


def accumulate(rows, terms, settings=None, model=None, scorer=None):
    scorer = scorer or PolicyScorer(model or tiny_model())
    settings = settings or config(beta=0.0, entropy_coef=0.0)
    metrics = accumulate_gradients(Accelerator(cpu=True), scorer, rows, settings, pad_token_id=0, terms=terms)
    assert metrics is not None
    return metrics


def test_two_terms_of_a_user_each_with_its_own_average():
    """Against a loop over rows: one over active rows by a constant, one over all rows by trajectory."""
    rows, _ = make_rows(dead_groups=(1, 6))
    settings, got, model = config(beta=0.0, entropy_coef=0.0), tiny_model(), tiny_model()
    metrics = accumulate(rows, objective(settings, [Pull(), BOUND], 0.0), settings, got)
    pulled = bounded = torch.zeros(())
    gaps, ids = [], rows.slot_ids.tolist()
    alive = len({t for t, a in zip(ids, rows.active.tolist(), strict=True) if a})
    for i, (prompt, response) in enumerate(zip(rows.prompts, rows.responses, strict=True)):
        n = len(response)
        log_all = model(torch.tensor([[*prompt, *response]])).logits[0].log_softmax(-1)[len(prompt) - 1 : -1]
        logp = log_all[range(n), list(response)]
        if rows.active[i]:
            gap = logp - rows.signals["target"][i, :n]
            pulled = pulled + rows.signals["strength"][i] * gap.square().sum() / 512 / alive
            gaps += gap.abs().tolist()
        whole = sum(len(r) for r, t in zip(rows.responses, ids, strict=True) if t == ids[i])
        bounded = bounded + (logp + 1).square().sum() / whole / len(set(ids))
    (0.2 * pulled + 0.5 * bounded).backward()
    for (name, ours), theirs in zip(got.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5, msg=lambda t, n=name: f"{n}: {t}")
    assert metrics["pull_loss"] == pytest.approx(0.2 * pulled.item(), rel=1e-4)
    assert metrics["bound_loss"] == pytest.approx(0.5 * bounded.item(), rel=1e-4)
    assert metrics["pull_gap"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-4)
    assert metrics["loss"] == pytest.approx(metrics["auxiliary_loss"], rel=1e-5)
    assert metrics["auxiliary_loss"] == pytest.approx(metrics["pull_loss"] + metrics["bound_loss"])


def test_the_logged_losses_add_up_to_the_loss():
    rows, _ = make_rows(dead_groups=(1,))
    metrics = accumulate(rows, objective(config(), [SDARTerm(coef=0.3), Pull()], 0.5), config())
    parts = [0.5 * metrics["policy_loss"], *(metrics[f"{name}_loss"] for name in ("kl", "entropy", "sdar", "pull"))]
    assert metrics["loss"] == pytest.approx(sum(parts), rel=1e-4)
    assert metrics["kl_loss"] > 0 > metrics["entropy_loss"]


def test_the_denominator_of_a_loss_is_called_after_its_term():
    terms = [LossTerm(name, rows="all", function=lambda batch: -batch.logprobs) for name in ("hinge_loss", "a_loss_b")]
    metrics = accumulate(make_rows()[0], terms)
    for name in ("hinge_loss", "a_loss_b"):
        assert metrics[f"{name}_denominator"] > 0
        assert metrics[f"{name}_loss"] != 0
    first = metrics | {"hinge_loss_loss": 4.0, "hinge_loss_denominator": 1.0}
    second = metrics | {"hinge_loss_loss": 0.0, "hinge_loss_denominator": 3.0}
    assert join_steps([first, second])["hinge_loss_loss"] == 1.0


def test_the_objective_is_what_the_configuration_says():
    terms = objective(config(beta=0.2, entropy_coef=0.3, epsilon=0.1, delta=None), [Pull()], 0.0)
    assert terms == [PolicyTerm(coef=0.0, epsilon=0.1, delta=None), KLTerm(coef=0.2), EntropyTerm(coef=0.3), Pull()]
    assert len(objective(config(beta=0.0, entropy_coef=0.0))) == 1
    assert LossTerm("x", average="dapo", function=lambda b: b.logprobs).over("grpo") == ("token-mean", "active")
    assert Pull(average="loss_type").over("dr_grpo") == ("seq-mean-token-sum-norm", "active")


def test_signals_of_rows_of_tokens_and_of_more_reach_a_term():
    rows, _ = make_rows()
    seen = []
    wide = torch.stack([rows.signals["target"], -rows.signals["target"]], -1)
    rows = type(rows)(**{**vars(rows), "signals": {**rows.signals, "wide": wide}})

    def look(batch):
        seen.append(batch)
        return batch.logprobs

    accumulate(rows, [*objective(config()), LossTerm("look", reads=("strength", "wide"), function=look)], config())
    lengths = torch.tensor([len(batch.logprobs) for batch in seen])
    assert lengths.sum() == rows.response_mask.sum()
    for batch in seen:
        assert batch.signals["wide"].shape == (len(batch.logprobs), 2)
        assert batch.signals["wide"][:, 0].equal(-batch.signals["wide"][:, 1])
        assert batch.signals["strength"].shape == batch.logprobs.shape
    strengths = torch.cat([batch.signals["strength"] for batch in seen]).sort().values
    expected = rows.signals["strength"].repeat_interleave(rows.response_mask.sum(1)).sort().values
    assert strengths.equal(expected)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda b: b.logprobs.mean(), r"loss of 'x' must have shape \[n\] = \[\d+\], .*, got \[\]; do not sum"),
        (lambda b: b.logprobs[:, None], r"loss of 'x' must have shape .* got \[\d+, 1\]"),
        (lambda b: b.logprobs.detach(), "loss of 'x' must depend on the policy or an attached module"),
        (lambda b: 0.0, r"loss of 'x' must be a tensor \[n\], got float"),
        (lambda b: (b.logprobs, {"y": b.logprobs.mean()}), "metric 'y' of 'x' must have shape"),
        (lambda b: (b.logprobs, {"ratio": b.logprobs}), "metrics must have names of their own, got 'ratio' of 'x'"),
        (lambda b: (b.logprobs, {"loss": b.logprobs}), "metrics must have names of their own, got 'loss' of 'x'"),
    ],
)
def test_what_a_term_returns_is_checked(function, message):
    rows, _ = make_rows()
    with pytest.raises((TypeError, ValueError), match=message):
        accumulate(rows, [*objective(config()), LossTerm("x", function=function)], config())


def test_what_a_term_is_made_of_is_checked():
    with pytest.raises(ValueError, match="Pull: coef must be a number of at least 0, got nan"):
        Pull(coef=float("nan"))
    with pytest.raises(ValueError, match="SDARTerm: beta must be a number of at least 0"):
        SDARTerm(beta=-1.0)
    with pytest.raises(ValueError, match=r"average must be one of .* got 'token_mean'; did you mean 'token-mean'\?"):
        Pull(average="token_mean")
    with pytest.raises(ValueError, match=r"rows must be one of \('active', 'all'\), got 'al'; did you mean 'all'\?"):
        Pull(rows="al")
    with pytest.raises(ValueError, match="name must be an identifier, got 'a/b'"):
        Pull(name="a/b")
    with pytest.raises(TypeError, match=r'reads must be a tuple of names, got \'values\'; write reads=\("name",\)'):
        Pull(reads="values")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="LossTerm: function must be given"):
        LossTerm("x")
    with pytest.raises(ValueError, match="names of their own, got a second 'pull'; rename one"):
        objective(config(), [Pull(), Pull()])
    with pytest.raises(ValueError, match="a second 'auxiliary'"):
        objective(config(), [Pull("auxiliary")])
    with pytest.raises(TypeError, match="terms must be LossTerm objects"):
        check_terms([print])  # type: ignore[list-item]
    rows, _ = make_rows()
    with pytest.raises(ValueError, match=r"signals must hold 'targets', which the term 'pull' reads.*mean 'target'\?"):
        accumulate(rows, [Pull(reads=("targets", "strength"))])
    with pytest.raises(ValueError, match=r"modules must hold 'value', which the term 'value' reads, got \[\]"):
        accumulate(rows, [VALUE])
    for shape in ((), (3,), (len(rows.prompts), 3)):
        with pytest.raises(ValueError, match=r"signals\['x'\] must be \[M\] or \[M, T\] = \[80, 5\], got"):
            type(rows)(**{**vars(rows), "signals": {"x": torch.zeros(shape)}})


def test_the_page_s_code_runs():
    page = (Path(__file__).resolve().parents[2] / "docs" / "objective.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict = {}
    for block in blocks:
        exec(compile(block, "objective.md", "exec"), names)
    rows, _ = make_rows()
    weights = torch.arange(len(rows.prompts)).float()
    rows = type(rows)(**{**vars(rows), "signals": {**rows.signals, "row_weights": weights}})
    scorer = PolicyScorer(tiny_model(), names["modules"](32))
    metrics = accumulate(rows, objective(config(), names["terms"]), config(), scorer=scorer)
    assert all(f"{term.name}_loss" in metrics for term in names["terms"])
    assert metrics["far_share"] > 0
    assert all(p.grad is not None for p in scorer.attached.parameters())
