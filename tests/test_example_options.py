"""What the training examples make of their flags: settings, prompts and checkpoints by policy."""

import importlib.util
import json
import runpy
import sys
import textwrap
import types
from pathlib import Path
from unittest import mock

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from transformers import LlamaConfig, LlamaForCausalLM

from turncredit.rollout import SamplingConfig
from turncredit.trainers import GRPOConfig, GRPOTrainer, get_method
from turncredit.trainers.launch import make_parser
from turncredit.trainers.launch import script as launch
from turncredit.trainers.methods import registry

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ["train_webshop", "train_search_qa"]
if importlib.util.find_spec("textworld") is not None:
    EXAMPLES.append("train_alfworld")
PANELS = {
    "train_alfworld": "--num-eval-games",
    "train_webshop": "--num-eval-goals",
    "train_search_qa": "--num-eval-questions",
}
SUITES = {"train_webshop": "webshop", "train_search_qa": "search_qa", "train_alfworld": "alfworld"}


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What an example would run: its arguments, suite, configuration; nothing is played."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)

    def start(example, *flags):
        seen = {}

        def run(args, suite, config, source, accelerator):
            seen.update(args=args, suite=suite, config=config)

        monkeypatch.setattr(launch, "run", run)
        if example == "train_alfworld":
            from turncredit.envs import alfworld
            from turncredit.envs.alfworld import compact

            monkeypatch.setattr(compact, "generate_once", lambda *a, **k: None)
            for module in (alfworld, compact):
                monkeypatch.setattr(module, "AlfWorldSuite", lambda *a, **options: (a, options))
        monkeypatch.setattr(sys, "argv", [example, *flags])
        runpy.run_path(str(ROOT / "examples" / f"{example}.py"), run_name="__main__")
        return seen

    return start


def has_compact_prompts(suite):
    builder = suite[1].get("build_messages") if isinstance(suite, tuple) else suite._build_messages
    return builder is not None and builder.__name__ == "compact_messages"


@pytest.mark.parametrize("how", ["my_methods.py", "my_methods"])
def test_methods_of_ones_own_are_imported_by_file_or_by_name(started, tmp_path, monkeypatch, how):
    code = """
        from turncredit.trainers import Method, register_method

        @register_method("mine")
        def mine(*, share: float = 0.5):
            return Method("grpo", policy_weight=share)
    """
    (tmp_path / "my_methods.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with mock.patch.dict(registry._METHODS), mock.patch.dict(sys.modules):
        seen = started("train_webshop", "--import", how, "--credit", "mine", "--credit-option", "share=0.25")
        assert get_method("mine", **seen["config"].credit_options).policy_weight == 0.25
        sys.modules.pop("my_methods")
        with pytest.raises(SystemExit, match="did you mean 'share'"):
            started("train_webshop", "--import", how, "--credit", "mine", "--credit-option", "shar=1")


@pytest.mark.parametrize("missing", ["nowhere.py", "nowhere", "nowhere.at.all"])
def test_what_cannot_be_imported_is_said(started, missing):
    with pytest.raises(SystemExit, match=f"--import: {missing} must be a"):
        started("train_webshop", "--import", missing)


def test_a_file_does_not_take_the_place_of_a_module(started, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise AssertionError('not to be run')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"--import: json\.py must not be named like a module that is loaded"):
        started("train_webshop", "--import", "json.py")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(("example", "flag"), [(e, f) for e, f in PANELS.items() if e in EXAMPLES])
def test_the_panel_has_the_size_that_is_asked_for(started, example, flag):
    assert started(example, flag, "24")["config"].evaluation.num_eval_tasks == 24


def of_the_papers(config, example):
    paper = GRPOConfig()
    names = ["learning_rate", "num_generations", "entropy_coef", "credit_options", "num_minibatches"]
    names += ["beta"] * (example != "train_search_qa")
    same = all(getattr(config, name) == getattr(paper, name) for name in names)
    return same and config.sampling.max_completion_length == 512


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_embedded_policy_keeps_its_settings_and_prompts(started, example):
    for flags in ((), ("--model", str(ROOT / "examples" / "assets" / f"{SUITES[example]}_tiny"))):
        seen = started(example, *flags)
        config = seen["config"]
        assert (config.learning_rate, config.beta, config.credit_options) == (5e-4, 0.0, {"invalid_penalty": 0.0})
        aligned = started(example, *flags, "--credit", "align_opsd", "--credit-option", "top_k=2")["config"]
        assert aligned.credit_options == {"invalid_penalty": 0.0, "encoder": "hashing", "top_k": 2}
        asked = started(example, *flags, "--credit-option", "invalid_penalty=0.3")["config"]
        assert asked.credit_options == {"invalid_penalty": 0.3}, "what the user asks for wins"
        assert config.sampling.max_completion_length in (12, 20)
        assert config.sampling.max_prompt_length + config.sampling.max_completion_length <= 512, "its positions"
        assert has_compact_prompts(seen["suite"])


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-0.5B-Instruct", "folder"])
def test_a_model_of_ones_own_gets_the_papers_settings_on_generated_tasks(started, example, model, tmp_path):
    if model == "folder":
        tiny_model().save_pretrained(tmp_path / "folder")
        tiny_tokenizer().save_pretrained(tmp_path / "folder")
    seen = started(example, "--model", model)
    assert of_the_papers(seen["config"], example)
    assert (seen["config"].max_steps, seen["config"].num_tasks) == (20, 8)
    assert not has_compact_prompts(seen["suite"])
    assert seen["args"].model == model


@pytest.mark.skipif("train_alfworld" not in EXAMPLES, reason="needs ALFWorld")
def test_the_embedded_policy_on_official_games_and_a_model_on_them(started, tmp_path):
    seen = started("train_alfworld", "--data", str(tmp_path))
    assert has_compact_prompts(seen["suite"])
    assert seen["config"].sampling.max_completion_length == 20
    assert seen["suite"][1]["privileged"] == "hint"
    seen = started("train_alfworld", "--data", str(tmp_path), "--model", "Qwen/Qwen2.5-3B-Instruct")
    assert not has_compact_prompts(seen["suite"])
    assert of_the_papers(seen["config"], "train_alfworld")
    assert (seen["config"].max_steps, seen["config"].num_tasks) == (150, 16)
    assert seen["suite"][1]["privileged"] == "skills"


def tiny_llama():
    """Of a family whose tokenizer class leaves a tokenizer of ours alone when it is read back."""
    settings = tiny_model().config.to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "max_position_embeddings", "eos_token_id", "pad_token_id")
    return LlamaForCausalLM(LlamaConfig(**{name: settings[name] for name in names}))


def checkpoint_of(folder, suite):
    """A checkpoint as a run on that suite writes it."""
    settings = {"max_steps": 1, "num_tasks": 2, "num_generations": 2, "credit": "grpo", "num_workers": 0, "beta": 0.0}
    sampling = SamplingConfig(max_completion_length=4)
    config = GRPOConfig(output_dir=folder, sampling=sampling, eval_steps=0, num_eval_tasks=1, **settings)
    with GRPOTrainer(tiny_llama(), tiny_tokenizer(), suite, config) as run:
        run.train()
    return folder / "checkpoints" / "step-000001"


def compact_messages(task, history, observation):
    return []


class Compact(ToySuite):
    def __init__(self, name):
        super().__init__(name=name)
        self._build_messages = compact_messages


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_checkpoint_is_evaluated_with_the_prompts_it_was_trained_on(started, example, tmp_path):
    name = SUITES[example]
    compact = checkpoint_of(tmp_path / "compact", Compact(name))
    full = checkpoint_of(tmp_path / "full", ToySuite(name=name))
    for source, expected in ((compact, True), (full, False)):
        for flags in (
            ["--model", str(source)],
            ["--model", str(source / "model")],
            ["--eval-only", "--resume", str(source)],
            ["--eval-only", "--resume", "--output-dir", str(source.parents[1])],
        ):
            seen = started(example, *flags)
            assert has_compact_prompts(seen["suite"]) == expected, flags
            assert Path(seen["args"].model) == source / "model"
            assert (seen["config"].learning_rate == 5e-4) == expected


def test_a_policy_without_a_note_is_known_by_its_vocabulary(tmp_path):
    import shutil

    source = ROOT / "examples" / "assets" / "webshop_tiny"
    shutil.copytree(source, tmp_path / "copy")
    args = make_parser().parse_args(["--model", str(tmp_path / "copy")])
    launch.resolve_policy(args, source, "webshop", "outputs")
    assert args.embedded
    launch.resolve_policy(args, ROOT / "examples" / "assets" / "alfworld_tiny", "alfworld", "outputs")
    assert not args.embedded


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--eval-only", "--resume"], "there is no checkpoint in"),
        (["--eval-only", "--resume", "nowhere"], "--resume: .*must be a checkpoint folder, got nowhere"),
        (["--model", "run"], "is a run; name one of its checkpoints"),
        (["--model", "other/checkpoints/step-000001"], "trained on compact prompts of alfworld, not of webshop"),
        (["--set", "learning_rate=fast"], "learning_rate must be a number above 0, got 'fast'"),
        (["--set", "num_tasks=2.5"], "num_tasks must be a whole number"),
        (["--set", "temperature=-1"], "SamplingConfig: temperature must be"),
        (["--set", "recompute_logprobs=yes"], "recompute_logprobs must be True or False"),
        (["--config", "list.json"], "must hold one object of options"),
        (["--config", "bad.json"], "--config: bad.json must be a JSON file of options"),
        (["--config", "nowhere.json"], "--config: nowhere.json must be a JSON file of options"),
        (["--set", "no_such=1"], "options must be known, got .no_such."),
        (["--set", "learning_rat=1"], "got .learning_rat.; did you mean .learning_rate.\\?"),
        (["--credit", "no_such"], "name must be one of .*, got 'no_such'"),
        (["--credit-option", "gama=1"], "gama"),
        (["--credit", "agent_opsd", "--credit-option", "weight_min=-1"], "weight_min"),
    ],
)
def test_flags_that_cannot_be_are_named_before_anything_is_made(started, tmp_path, monkeypatch, flags, message):
    monkeypatch.setattr(launch, "make_accelerator", lambda *a: pytest.fail("a suite is made next"))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bad.json").write_text("{bad")
    if "other/" in flags[-1]:
        checkpoint_of(tmp_path / "other", Compact("alfworld"))
    with pytest.raises(SystemExit, match=message):
        started("train_webshop", *flags)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            ("true", True),
            ("False", False),
            ("null", None),
            ("None", None),
            ("1e-4", 1e-4),
            (" 3", 3),
            ("[1, 2]", [1, 2]),
        ],
        *[("none", "none"), ("grpo", "grpo"), ("a=b", "a=b"), ('{"on": true}', {"on": True}), ("", "")],
    ],
)
def test_values_of_flags_read_as_python_or_json_writes_them(text, value):
    args = make_parser().parse_args(["--set", f"seed={text}", "--credit-option", f"seed={text}"])
    assert launch.given_options(args) == {"seed": value, "credit_options": {"seed": value}}


def test_options_of_a_file_may_group_those_of_sampling(started, tmp_path):
    (tmp_path / "options.json").write_text(json.dumps({"learning_rate": 1e-5, "sampling": {"temperature": 0.7}}))
    config = started("train_webshop", "--config", "options.json", "--set", "top_p=0.9")["config"]
    assert (config.learning_rate, config.sampling.temperature, config.sampling.top_p) == (1e-5, 0.7, 0.9)


def test_evaluating_leaves_the_run_folder_alone(tmp_path, monkeypatch, capsys):
    source = checkpoint_of(tmp_path / "run", ToySuite())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    args = make_parser().parse_args(["--eval-only", "--resume", "--lora-rank", "4"])
    launch.resolve_policy(args, ROOT / "examples" / "assets" / "webshop_tiny", "toy", str(tmp_path / "run"))
    sampling = SamplingConfig(max_completion_length=4)
    config = GRPOConfig(output_dir=tmp_path / "run", num_tasks=2, num_eval_tasks=2, num_workers=0, sampling=sampling)
    loaded = []
    original = launch.load_policy

    def recorded(*arguments):
        loaded.append(original(*arguments))
        return loaded[-1]

    monkeypatch.setattr(launch, "load_policy", recorded)
    launch.run(args, ToySuite(), config, args.model, launch.make_accelerator())
    said = capsys.readouterr().out
    assert f"evaluating {source / 'model'} with the settings of the papers: learning rate 1e-06" in said
    assert '"eval/success"' in said
    assert '"eval_privileged/success"' in said
    assert loaded[0][1].get_vocab() == tiny_tokenizer().get_vocab()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_a_checkpoint_of_an_adapter_is_loaded_with_it(tmp_path):
    peft = pytest.importorskip("peft")
    tiny_model().save_pretrained(tmp_path / "base")
    base = launch.load_model(str(tmp_path / "base"))
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    adapted.save_pretrained(tmp_path / "adapter")
    ids = torch.arange(6)[None]
    with torch.no_grad():
        wanted = adapted(ids).logits
        with adapted.disable_adapter():
            plain = adapted(ids).logits
    model = launch.load_model(str(tmp_path / "adapter"))
    assert type(model) is type(tiny_model())
    assert not getattr(model, "_hf_peft_config_loaded", False)
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(wanted, plain, atol=1e-2)


def test_the_script_of_the_documentation_needs_a_suite_and_a_model(tmp_path, monkeypatch, capsys):
    tiny_llama().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    seen = []
    module = types.ModuleType("my_suite")
    vars(module)["MySuite"] = lambda data, level: seen.append((data, level)) or ToySuite()
    monkeypatch.setitem(sys.modules, "my_suite", module)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "launching.md").read_text(encoding="utf-8")
    Path("train.py").write_text(page.split("```python\n")[1].split("```")[0], encoding="utf-8")

    def start(*flags):
        monkeypatch.setattr(sys, "argv", ["train.py", *flags])
        runpy.run_path("train.py", run_name="__main__")

    with pytest.raises(SystemExit, match="--model must name the policy to train"):
        start()
    assert not seen
    small = ("num_workers=0", "max_completion_length=4", "num_tasks=2", "num_generations=2", "num_eval_tasks=1")
    options = [word for option in small for word in ("--set", option)]
    start("--model", "model", "--max-steps", "1", "--level", "2", "--data", "here", *options)
    assert seen == [("here", 2)]
    assert "after 1 updates of grpo" in capsys.readouterr().out
    assert Path("outputs", "mine", "metrics.jsonl").is_file()


def test_flags_that_do_not_go_together_are_said_with_the_usage(started, capsys):
    for example, flags, message in (
        ("train_webshop", ["--data", "shop"], "the embedded policy knows the generated shop"),
        ("train_search_qa", ["--data", "train.parquet"], "--data needs --model of another policy"),
        ("train_search_qa", ["--retriever", "http://127.0.0.1:1"], "need --model"),
    ):
        with pytest.raises(SystemExit):
            started(example, *flags)
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--methods posterior", "--baseline must be among the methods (posterior), got 'grpo'"),
        ("--methods a=grpo a=gigpo --baseline a", "records must agree in method a, got 'grpo' and 'gigpo'"),
        ("--methods grpo gigop", "did you mean 'gigpo'"),
        ("--methods grpo --seeds 0", "must be a whole number from 1 on, got '0'"),
        ("--results nope.jsonl", "there is no nope.jsonl"),
        ("--methods grpo --environments webshop", 'pip install "turncredit[webshop]"'),
    ],
)
def test_a_panel_that_would_come_to_nothing_is_not_begun(flags, said, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "webshop" in flags else name)
    monkeypatch.setattr(sys, "argv", ["compare_training", *flags.split()])
    with pytest.raises(SystemExit) as error:
        runpy.run_path(str(ROOT / "examples" / "compare_training.py"), run_name="__main__")
    assert said in f"{error.value}{capsys.readouterr().err}"
    assert not list(tmp_path.glob("outputs/compare_training/*"))
