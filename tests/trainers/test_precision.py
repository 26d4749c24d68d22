"""LoRA, gradient checkpointing and bf16: what changes and what must not."""

import json

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from run_faults import SUITE, config
from safetensors.torch import load_file
from tiny import tiny_model, tiny_tokenizer

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.trainers import GRPOTrainer

PROMPTS, RESPONSES = [(3, 9, 4), (3, 10, 11, 4)], [(12, 13, 1), (14,)]


def adapter():
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")


def lora(folder, **changes):
    torch.manual_seed(5)
    return GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(folder, **changes), peft_config=adapter())


def parameters(run):
    return {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}


def test_lora_trains_the_adapter_only_and_its_reference_is_the_model_without_it(tmp_path):
    with lora(tmp_path, save_steps=0) as run:
        before = parameters(run)
        first = run.train_step()
        second = run.train_step()
        after = parameters(run)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed
        assert all("lora_" in name for name in changed)
        assert sum(name.endswith("lora_B.default.weight") for name in changed) > 10
        assert first["train/kl"] == 0.0, "a fresh adapter changes nothing"
        assert second["train/kl"] > 0
        options = {"pad_token_id": 0}
        reference = score_responses(run.policy.reference, PROMPTS, RESPONSES, **options).logprobs
        base = score_responses(PolicyScorer(tiny_model()), PROMPTS, RESPONSES, **options).logprobs
        policy = score_responses(run.policy.scoring, PROMPTS, RESPONSES, **options).logprobs
    torch.testing.assert_close(reference, base)
    assert (policy - base).abs().max() > 1e-3


def test_lora_resumes_bit_for_bit_and_saves_an_adapter_folder(tmp_path):
    with lora(tmp_path / "whole") as run:
        run.train()
        expected = parameters(run)
    with lora(tmp_path / "parts") as run:
        while run.step < 2:
            run.train_step()
        run.save()
    folder = tmp_path / "parts" / "checkpoints" / "step-000002"
    saved = load_file(folder / "model" / "adapter_model.safetensors")
    assert saved
    assert all("lora_" in name for name in saved)
    with lora(tmp_path / "parts") as run:
        run.train(resume_from=True)
        assert all(torch.equal(value, expected[name]) for name, value in parameters(run).items())
    with (
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path / "parts")) as run,
        pytest.raises(ValueError, match="peft_config must be given, as in the checkpoint"),
    ):
        run.resume(True)


def test_another_initial_model_is_refused_where_the_reference_depends_on_it(tmp_path):
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path)) as run:
        run.train_step()
        run.save()
    with (
        GRPOTrainer(tiny_model(seed=1), tiny_tokenizer(), SUITE, config(tmp_path)) as run,
        pytest.raises(ValueError, match="initial_model"),
    ):
        run.resume(True)


def test_gradient_checkpointing_changes_no_update(tmp_path):
    results = []
    for checkpointing in (False, True):
        model = tiny_model()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        settings = config(tmp_path / str(checkpointing), save_steps=0)
        with GRPOTrainer(model, tiny_tokenizer(), SUITE, settings) as run:
            metrics = [run.train_step() for _ in range(2)]
            results.append((parameters(run), [line["train/grad_norm"] for line in metrics]))
    (plain, norms), (saved, other_norms) = results
    assert norms == pytest.approx(other_norms, rel=1e-5)
    for name, value in plain.items():
        torch.testing.assert_close(value, saved[name], rtol=1e-4, atol=1e-5)


@pytest.fixture
def bf16_accelerator():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    yield Accelerator(mixed_precision="bf16", cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def test_bf16_scores_again_before_training_so_that_the_first_ratio_is_one(tmp_path, bf16_accelerator):
    settings = config(tmp_path, max_steps=2, save_steps=0, credit="agent_opsd")
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, accelerator=bf16_accelerator) as run:
        run.train()
        assert next(run.model.parameters()).dtype == torch.float32, "the weights keep float32"
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["train/ratio"] == pytest.approx(1.0, abs=2e-2)
    assert 0 < lines[1]["train/sampling_drift"] < 0.1
    assert all(value == value for line in lines for value in line.values())
