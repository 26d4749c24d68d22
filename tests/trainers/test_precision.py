"""LoRA, gradient checkpointing and bf16: what changes and what must not."""

import json
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from helpers.run_faults import SUITE, config
from helpers.tiny import tiny_model, tiny_tokenizer
from safetensors.torch import load_file

from turncredit.rollout import PolicyScorer, score_responses
from turncredit.trainers import GRPOTrainer
from turncredit.trainers.distributed import configure_deepspeed
from turncredit.trainers.policy import add_adapter, check_accelerator, make_policy
from turncredit.trainers.snapshots import TeacherSnapshot

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


def test_in_bf16_an_equal_reference_scores_exactly_like_the_policy(tmp_path, bf16_accelerator):
    settings = config(tmp_path, save_steps=0)
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, settings, accelerator=bf16_accelerator) as run:
        options = {"pad_token_id": 0}
        policy = score_responses(run.policy.scoring, PROMPTS, RESPONSES, **options).logprobs
        reference = score_responses(run.policy.reference, PROMPTS, RESPONSES, **options).logprobs
    exact = score_responses(PolicyScorer(tiny_model()), PROMPTS, RESPONSES, **options).logprobs
    assert torch.equal(reference, policy)
    assert not torch.equal(reference, exact), "both run in bf16"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixed_precision": "fp16"}, 'mixed_precision must be "no" or "bf16", got \'fp16\''),
        ({"distributed_type": DistributedType.FSDP}, "plain processes or DeepSpeed, got FSDP"),
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps of the accelerator must be 1, got 4"),
    ],
)
def test_accelerators_that_would_train_wrongly_are_refused(changes, message):
    settings = {"mixed_precision": "no", "distributed_type": DistributedType.NO, "gradient_accumulation_steps": 1}
    check_accelerator(SimpleNamespace(**settings))
    with pytest.raises(ValueError, match=message):
        make_policy(SimpleNamespace(**{**settings, **changes}), tiny_model(), None, None, None)


def test_adapters_that_scoring_would_not_see_are_refused():
    peft = pytest.importorskip("peft")
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(ValueError, match="into the layers, got PromptTuningConfig"):
        add_adapter(tiny_model(), prompts)


def test_deepspeed_sums_bf16_micro_batches_in_float32():
    for stage, expected in ((1, None), (2, "fp32"), (3, "fp32")):
        plugin = SimpleNamespace(deepspeed_config={"bf16": {"enabled": "auto"}}, zero_stage=stage)
        accelerator = SimpleNamespace(
            distributed_type=DistributedType.DEEPSPEED,
            state=SimpleNamespace(deepspeed_plugin=plugin),
            num_processes=2,
            mixed_precision="bf16",
        )
        configure_deepspeed(accelerator, 0.5)
        settings = plugin.deepspeed_config
        assert settings.get("data_types", {}).get("grad_accum_dtype") == expected
        assert settings["bf16"] == {"enabled": True, "check_grad_overflow": True}
        assert settings["train_batch_size"] == 2
        assert settings["gradient_clipping"] == 0.5


def test_an_average_of_bf16_weights_moves_by_less_than_bf16_can_tell():
    model = torch.nn.Linear(1, 1, bias=False).bfloat16()
    torch.nn.init.constant_(model.weight, 1.0)
    snapshot = TeacherSnapshot(model, "ema", ema_rate=0.05)
    torch.nn.init.constant_(model.weight, 1.0078125)  # the next number of bf16
    for step in (1, 2):
        snapshot.update(step)
    # 1 + 2^-7 (1 - 0.95^2) = 1 + 0.0078125 x 0.0975
    assert float(snapshot.weights["weight"]) == pytest.approx(1.00076171875, abs=1e-7)


def test_another_adapter_is_refused(tmp_path):
    with lora(tmp_path) as run:
        run.save()
    changed = adapter()
    changed.lora_alpha = 16
    with (
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), peft_config=changed) as run,
        pytest.raises(ValueError, match="got peft_config; pass allow_changed_config"),
    ):
        run.resume(True)
