"""What the trainer makes of a model: the reference is the policy's own start, weights are float32, or it refuses."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from helpers.run_faults import SUITE, config
from helpers.tiny import tiny_model, tiny_tokenizer

from turncredit.rollout import score_responses
from turncredit.trainers import GRPOCallback, GRPOTrainer
from turncredit.trainers.first_update import FirstUpdate
from turncredit.trainers.policy import make_policy, make_precise
from turncredit.trainers.reference import AdapterOff, InitialWeights, adapter_is_neutral

peft = pytest.importorskip("peft")

PROMPTS, RESPONSES = [(3, 9, 4), (3, 10, 11, 4), (3, 5, 6)], [(12, 13, 1), (14,), (9, 10)]


def lora(**options):
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return peft.LoraConfig(**{**settings, **options})


def trained_adapter(**options):
    """A PeftModel whose adapter has moved, as one that comes out of supervised training."""
    torch.manual_seed(3)
    model = peft.get_peft_model(tiny_model(), lora(**options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model


def trainer(folder, model=None, peft_config=None, accelerator=None, ref_model=None, **changes):
    torch.manual_seed(5)
    return GRPOTrainer(
        model or tiny_model(),
        tiny_tokenizer(),
        SUITE,
        config(folder, **{"credit": "grpo", "save_steps": 0, "eval_steps": 0, **changes}),
        peft_config=peft_config,
        accelerator=accelerator,
        ref_model=ref_model,
    )


def reference_scores(run):
    return score_responses(run.policy.reference, PROMPTS, RESPONSES, pad_token_id=0).logprobs


def policy_scores(run):
    return score_responses(run.policy.scoring, PROMPTS, RESPONSES, pad_token_id=0).logprobs


FRESH, SNAPSHOT = AdapterOff, InitialWeights
CASES = {
    "lora": (lambda: (tiny_model(), lora()), FRESH),
    "rank-stabilised": (lambda: (tiny_model(), lora(use_rslora=True)), FRESH),
    "own fresh": (lambda: (peft.get_peft_model(tiny_model(), lora()), None), FRESH),
    "embedding": (lambda: (tiny_model(), lora(target_modules=["embed_tokens", "q_proj"])), FRESH),
    "trained": (lambda: (trained_adapter(), None), SNAPSHOT),
    "trained with biases": (lambda: (trained_adapter(bias="lora_only"), None), SNAPSHOT),
    "random": (lambda: (tiny_model(), lora(init_lora_weights=False)), SNAPSHOT),
    "pissa": (lambda: (tiny_model(), lora(init_lora_weights="pissa")), SNAPSHOT),
    "pissa by iterations": (lambda: (tiny_model(), lora(init_lora_weights="pissa_niter_4")), SNAPSHOT),
    "olora": (lambda: (tiny_model(), lora(init_lora_weights="olora")), SNAPSHOT),
    "biases": (lambda: (tiny_model(), lora(bias="all")), SNAPSHOT),
    "biases beside": (lambda: (tiny_model(), lora(bias="lora_only")), SNAPSHOT),
    "dora": (lambda: (tiny_model(), lora(use_dora=True)), SNAPSHOT),
    "head": (lambda: (tiny_model(), lora(modules_to_save=["lm_head"])), SNAPSHOT),
    "head and embedding": (
        lambda: (tiny_model(tie_word_embeddings=False), lora(modules_to_save=["lm_head", "embed_tokens"])),
        SNAPSHOT,
    ),
    "tokens": (lambda: (tiny_model(), lora(trainable_token_indices=[3, 12])), SNAPSHOT),
    "ia3": (lambda: (tiny_model(), peft.IA3Config(task_type="CAUSAL_LM")), SNAPSHOT),
    "whole model": (lambda: (tiny_model(), None), None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reference_is_the_policys_own_start_and_stays_it(tmp_path, case):
    make, kind = CASES[case]
    model, peft_config = make()
    with trainer(tmp_path, model, peft_config) as run:
        start = policy_scores(run)
        assert torch.equal(reference_scores(run), start)
        assert run.preflight["reference"].got == "KL 0 nats per token"
        if kind is not None:
            assert isinstance(run.policy.reference, kind)
        first = run.train_step()
        assert first["train/kl"] == 0.0
        moved = policy_scores(run)
        assert not torch.equal(moved, start)
        assert torch.equal(reference_scores(run), start)
        assert torch.equal(policy_scores(run), moved), "scoring the reference leaves the policy as it is"


def test_adapter_off_needs_a_pair_of_which_one_is_zero_everywhere():
    model = peft.get_peft_model(tiny_model(), lora())
    assert adapter_is_neutral(model)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "lora_B" in n)[0, 0] = 1e-8
    assert not adapter_is_neutral(model)


@pytest.mark.parametrize("case", ["trained", "pissa", "biases beside"])
def test_a_resumed_run_has_the_reference_it_started_with(tmp_path, case):
    make, _ = CASES[case]
    with trainer(tmp_path / "whole", *make(), max_steps=3) as run:
        run.train()
        expected, kl = policy_scores(run), run.train_step()["train/kl"]
    with trainer(tmp_path / "parts", *make(), max_steps=3) as run:
        run.train_step()
        start = reference_scores(run)
        run.save()
    with trainer(tmp_path / "parts", *make(), max_steps=3) as run:
        run.train(resume_from=True)
        assert torch.equal(reference_scores(run), start)
        assert torch.equal(policy_scores(run), expected)
        assert run.train_step()["train/kl"] == kl


def test_a_random_start_of_an_adapter_comes_back_from_the_checkpoint(tmp_path):
    random = lora(init_lora_weights=False)
    with trainer(tmp_path, tiny_model(), random) as run:
        run.train_step()
        start = reference_scores(run)
        run.save()
    torch.manual_seed(77)
    again = GRPOTrainer(
        tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path, credit="grpo", save_steps=0, eval_steps=0),
        peft_config=random,
    )  # fmt: skip
    with again as run:
        assert not torch.equal(reference_scores(run), start)
        run.resume(True)
        assert torch.equal(reference_scores(run), start)


def test_an_initialisation_that_leaves_another_base_is_named_on_resume(tmp_path, monkeypatch):
    with trainer(tmp_path, tiny_model(), lora(init_lora_weights="pissa")) as run:
        run.train_step()
        run.save()
    from peft.tuners.lora import LoraLayer

    original = LoraLayer.pissa_init

    def another(self, name, kind):  # as a random decomposition, or another machine's
        original(self, name, kind)
        self.get_base_layer().weight.data *= 1.01

    monkeypatch.setattr(LoraLayer, "pissa_init", another)
    with (
        trainer(tmp_path, tiny_model(), lora(init_lora_weights="pissa")) as run,
        pytest.raises(ValueError, match="initial_model"),
    ):
        run.resume(True)


def test_a_reference_of_ones_own_is_told_with_its_figure(tmp_path, caplog):
    with caplog.at_level("INFO"), trainer(tmp_path, ref_model=tiny_model(seed=1)) as run:
        assert run.preflight["reference"].status == "warning"
        assert run.train_step()["train/kl"] > 0
    assert "preflight of Qwen2ForCausalLM in float32" in caplog.text
    assert "reference KL" in caplog.text


# ---- what is refused


def test_adapters_that_would_not_train_as_they_should_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"peft_config must be None where the model has an adapter already, got Lora"):
        trainer(tmp_path, trained_adapter(), lora())
    merged = trained_adapter()
    merged.merge_adapter()
    with pytest.raises(ValueError, match="must not be merged"):
        trainer(tmp_path, merged)
    native = tiny_model()
    native._hf_peft_config_loaded = True  # what transformers' own add_adapter and load_adapter leave
    with pytest.raises(ValueError, match="as a PeftModel, got Qwen2ForCausalLM with load_adapter"):
        trainer(tmp_path, native)
    prompts = peft.get_peft_model(tiny_model(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(ValueError, match="into the layers, got 'default' = PromptTuningConfig"):
        trainer(tmp_path, prompts)


def test_nothing_trainable_is_refused_with_the_fix(tmp_path):
    trained_adapter().save_pretrained(tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(tiny_model(), tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"trainable weight, got none in .*is_trainable=True"):
        trainer(tmp_path, loaded)
    with pytest.raises(ValueError, match=r"requires_grad_\(True\)"):
        trainer(tmp_path, tiny_model().requires_grad_(False))
    loaded = peft.PeftModel.from_pretrained(tiny_model(), tmp_path / "adapter", is_trainable=True)
    with trainer(tmp_path, loaded) as run:
        assert run.train_step()["train/kl"] == 0.0


def test_a_reference_that_holds_the_policys_weights_is_refused(tmp_path):
    model = tiny_model()
    with pytest.raises(ValueError, match="ref_model must not share weights with model"):
        trainer(tmp_path, model, ref_model=model)
    base = tiny_model()
    with pytest.raises(ValueError, match="ref_model must not share weights with model"):
        trainer(tmp_path, peft.get_peft_model(base, lora()), ref_model=base)
    with pytest.raises(ValueError, match="ref_model must have the model's vocabulary, got embeddings of 24 and 23"):
        trainer(tmp_path, ref_model=tiny_model(vocab_size=24))


def test_a_model_that_the_preflight_refuses_starts_no_worker_and_no_run(tmp_path):
    with pytest.raises(ValueError, match=r"preflight: Qwen2ForCausalLM in float32 .*lengths must be at most 64"):
        trainer(tmp_path, tiny_model(max_position_embeddings=64))
    with trainer(tmp_path, tiny_model(max_position_embeddings=64), preflight=False) as run:
        assert run.preflight is None


def test_tasks_with_one_id_are_refused(tmp_path):
    tasks = list(SUITE.tasks("train"))
    with pytest.raises(ValueError, match="train_tasks must have ids that are unique, got 1 more than once"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), train_tasks=[*tasks, tasks[0]])
    panel = list(SUITE.tasks("eval"))[:1] * 2
    with pytest.raises(ValueError, match="eval_tasks must have ids that are unique"):
        GRPOTrainer(tiny_model(), tiny_tokenizer(), SUITE, config(tmp_path), eval_tasks=panel)


# ---- the first update


class Shift(GRPOCallback):
    """Changes the weights between rollouts and training, as anything that makes the two disagree would."""

    def on_rollout(self, trainer, trajectories):
        with torch.no_grad():
            for parameter in trainer.model.parameters():
                parameter.mul_(1.1)


@pytest.mark.parametrize(("recompute", "name"), [(False, "log_ratio_abs"), (True, "train/sampling_drift")])
def test_a_first_update_whose_samples_are_not_what_is_trained_stops_the_run(tmp_path, recompute, name):
    with trainer(tmp_path, recompute_logprobs=recompute) as run:
        before = {n: p.detach().clone() for n, p in run.model.named_parameters()}
        run.callbacks = [Shift()]
        with pytest.raises(RuntimeError, match=f"{name} of the first update must be at most 0.001 nats .* got 0"):
            run.train_step()
        for n, p in run.model.named_parameters():
            torch.testing.assert_close(p, before[n] * 1.1), "no step was taken"
    assert list(tmp_path.glob("failed-update-000001-*.jsonl.gz")), "the rollouts are kept"


def test_later_updates_may_drift(tmp_path):
    with trainer(tmp_path) as run:
        run.train_step()
        run.callbacks = [Shift()]
        assert run.train_step()["train/log_ratio_abs"] > 1e-3


def test_a_message_that_the_template_leaves_out_of_a_real_prompt_stops_the_run():
    tokenizer, first = tiny_tokenizer(), FirstUpdate("Model", "float32", 1.0)
    messages = [{"role": "system", "content": "say"}, {"role": "user", "content": "red door"}]
    batch = SimpleNamespace(turns=[SimpleNamespace(messages=messages)], prompts=[(3, 9)])
    first.check_rollouts(tokenizer, batch, {})
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "for m in messages", "for m in messages if m.role != 'system'"
    )
    with pytest.raises((RuntimeError, ValueError), match="system"):
        first.check_rollouts(tokenizer, batch, {})


def test_many_unknown_tokens_are_a_warning(tmp_path, caplog):
    class Foreign(type(SUITE)):
        def messages(self, task, history, observation):
            return [{"role": "user", "content": f"{observation.text} quartz"}]

    settings = config(tmp_path, credit="grpo", save_steps=0, eval_steps=0)
    suite = Foreign(num_tasks=8, lenient=True)
    with GRPOTrainer(tiny_model(), tiny_tokenizer(), suite, settings) as run:
        run.train_step()
    assert "% of the prompts' tokens are unknown to the tokenizer" in caplog.text


# ---- precision


@pytest.fixture
def bf16_accelerator():
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    yield Accelerator(mixed_precision="bf16", cpu=True)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def moved_entries(run):
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    run.train_step()
    return sum(int((p != before[name]).sum()) for name, p in run.model.named_parameters())


def test_half_precision_weights_move_as_many_entries_as_float32_or_are_refused(tmp_path, bf16_accelerator):
    options = {"learning_rate": 1e-6, "accelerator": bf16_accelerator}
    rounded = tiny_model().bfloat16()
    with trainer(tmp_path, copy.deepcopy(rounded).float(), **options) as run:
        expected = moved_entries(run)
    with trainer(tmp_path, copy.deepcopy(rounded), **options) as run:
        assert {p.dtype for p in run.model.parameters()} == {torch.float32}
        assert moved_entries(run) == expected > 10_000
    plain = Accelerator.__new__(Accelerator)  # only its precision is asked
    plain.__dict__["state"] = type("State", (), {"mixed_precision": "no"})()
    with pytest.raises(ValueError, match=r"must be float32, got bfloat16 in 26 of 26, such as .*dtype=torch.float32"):
        make_precise(plain, rounded)


def test_a_half_precision_run_without_bf16_is_refused(tmp_path):
    with pytest.raises(ValueError, match="trainable weights must be float32, got bfloat16"):
        trainer(tmp_path, tiny_model().bfloat16())
    with pytest.raises(ValueError, match="trainable weights must be float32, got float16"):
        trainer(tmp_path, tiny_model().half())


def test_a_frozen_bf16_base_under_a_float32_adapter_is_fine(tmp_path):
    with trainer(tmp_path, tiny_model().bfloat16(), lora(), learning_rate=1e-6) as run:
        kinds = {p.dtype for p in run.model.parameters() if p.requires_grad}
        assert kinds == {torch.float32}
        assert run.preflight.precision == "bfloat16"
        assert run.train_step()["train/kl"] == 0.0
    untied, saved = tiny_model(tie_word_embeddings=False).bfloat16(), lora(modules_to_save=["lm_head", "embed_tokens"])
    with pytest.raises(ValueError, match=r"trainable weights must be float32, got bfloat16 in 2 of .*modules_to_save"):
        trainer(tmp_path, untied, saved)


@pytest.mark.parametrize("options", [{}, {"bias": "all"}, {"modules_to_save": ["lm_head"]}])
def test_first_kl_is_zero_in_bf16_too(tmp_path, bf16_accelerator, options):
    with trainer(tmp_path, tiny_model().bfloat16(), lora(**options), accelerator=bf16_accelerator) as run:
        assert run.preflight["reference"].got == "KL 0 nats per token"
        start = reference_scores(run)
        assert run.train_step()["train/kl"] < 1e-3  # training runs in other micro-batches
        assert torch.equal(reference_scores(run), start)


def test_a_given_reference_gets_the_policys_precision(tmp_path, bf16_accelerator):
    same = tiny_model().bfloat16()
    with trainer(tmp_path, tiny_model().bfloat16(), ref_model=same, accelerator=bf16_accelerator) as run:
        assert run.preflight["reference"].got == "KL 0 nats per token"


def test_partly_frozen_weights_in_two_precisions_resume_exactly(tmp_path, bf16_accelerator):
    def model():
        mixed = tiny_model().bfloat16()
        mixed.get_input_embeddings().requires_grad_(False)
        return mixed

    with trainer(tmp_path, model(), accelerator=bf16_accelerator, learning_rate=1e-6) as run:
        run.train_step()
        run.save()
        expected = {name: p.detach().clone() for name, p in run.model.named_parameters()}
        assert {p.dtype for p in expected.values()} == {torch.float32, torch.bfloat16}
    with trainer(tmp_path, model(), accelerator=bf16_accelerator, learning_rate=1e-6) as run:
        run.resume(True)
        assert all(torch.equal(p, expected[name]) for name, p in run.model.named_parameters())
    state = json.loads((tmp_path / "checkpoints" / "step-000001" / "trainer_state.json").read_text())
    assert state["step"] == 1


def test_make_policy_says_what_its_reference_is():
    policy = make_policy(Accelerator(cpu=True), tiny_model(), config("unused"), tiny_model(seed=1), None)
    assert policy.given
    assert not make_policy(Accelerator(cpu=True), tiny_model(), config("unused"), None, None).given
