"""The command line: what it answers without loading anything, what it makes of flags and files."""

import inspect
import json
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from transformers import LlamaConfig, LlamaForCausalLM

from turncredit.credit import get_credit
from turncredit.trainers import GRPOConfig, list_methods
from turncredit.trainers.cli import doctor, main
from turncredit.trainers.config import GROUPS
from turncredit.trainers.launch import benchmark as benchmarks
from turncredit.trainers.launch import known, make_parser, report, script
from turncredit.trainers.launch.options import make_config
from turncredit.trainers.launch.parser import read_options
from turncredit.trainers.loggers import read_metrics
from turncredit.trainers.methods import registry

ROOT = Path(__file__).resolve().parents[2]


def answer(capsys, *words):
    """Status and text of a command line that is wrong or asks for help."""
    try:
        status = main(words)
    except SystemExit as error:
        status = error.code
    said = capsys.readouterr()
    return (1, status) if isinstance(status, str) else (status, said.out + said.err)


def test_options_read_from_the_sources_are_those_of_the_configuration():
    config = GRPOConfig()
    found = {option.name: option for option in known.known_options()}
    assert set(found) == set(config.to_dict())
    for name, option in found.items():
        assert option.default == getattr(config, name), name
        assert option.help, name
        assert not option.group or hasattr(getattr(config, option.group), name), name
    assert set(known._groups()) == set(GROUPS)


def where(name):
    """The module that registers a method."""
    factory = registry._METHODS[name].factory if name in registry._METHODS else get_credit(name).function
    return inspect.unwrap(getattr(factory, "func", factory)).__module__


def test_methods_read_from_the_sources_are_those_that_register():
    own = {name for name in list_methods() if where(name).startswith("turncredit.")}
    assert own == set(known._shipped_methods())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("trian", "no command 'trian'; did you mean 'train'"),
        ("train", "must be given a name first"),
        ("train webshpo", "there is no 'webshpo'; did you mean 'webshop'"),
        ("train webshop --learning-rat 1", "no flag --learning-rat; did you mean '--learning-rate'"),
        ("train webshop --learning_rat=1", "no flag --learning-rat; did you mean '--learning-rate'"),
        ("train webshop --learning-rate fast", "argument --learning-rate: invalid float value: 'fast'"),
        ("train webshop more", "nothing that 'more' could be"),
        ("train webshop --set learning_rat=1", "got 'learning_rat'; did you mean 'learning_rate'"),
        ("train webshop --credit agent_ospd", "got 'agent_ospd'; did you mean 'agent_opsd'"),
        ("train webshop --import no_such_module", "no_such_module must be a module"),
        ("compare webshop --methods slow=gigop:eps=1", "got 'gigop'; did you mean 'gigpo'"),
        ("compare webshpo", "invalid choice: 'webshpo'"),
        ("doctor --all", "there is no flag --all"),
    ],
)
def test_a_typo_is_answered_with_what_was_meant(words, said, capsys):
    status, text = answer(capsys, *words.split())
    assert status in (1, 2)
    assert said in text


def test_a_typo_and_help_load_neither_torch_nor_transformers():
    code = """
        import sys
        from turncredit.trainers.cli import main
        for words in (["--help"], ["train", "alfworld", "--help"], ["eval", "webshop", "--credit", "gpro"],
                      ["train", "search_qa", "--seed"], ["compare", "--help"]):
            try:
                main(words)
            except SystemExit:
                pass
        print({"torch", "transformers", "accelerate"} & set(sys.modules))
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    ).stdout
    assert said.rstrip().endswith("set()")
    assert "--learning-rate X" in said
    assert "(default: 1e-06)" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("eval webshop --learning-rate 1", "--learning-rate must be left out in an evaluation"),
        ("eval webshop --lora-rank 2", "--lora-rank must be left out in an evaluation"),
        ("eval webshop --resume --model x", "--model and --resume must not be given together"),
        ("train webshop --lora-alpha 2", "--lora-alpha must be given with --lora-rank"),
        ("train webshop --allow-changed-config", "--allow-changed-config must be given with --resume"),
        ("train webshop --seeds 0 1 --seed 2", "--seeds must not be given with --seed"),
        ("train webshop --seeds 0 1 --resume x", "--seeds must not be given with --resume CHECKPOINT"),
        ("train webshop --seeds 1 1", "--seeds must be different, got 1 1"),
        ("train alfworld --data d --games-dir g", "--games-dir must be left out with --data"),
        ("train alfworld --data d --num-games 4", "--num-games must be left out with --data"),
        ("train alfworld --eval-split valid_seen", "--eval-split must be given with --data"),
        ("train search_qa --eval-data d", "--eval-data must be given with --data"),
    ],
)
def test_a_flag_that_changes_nothing_is_refused(words, said, capsys, monkeypatch):
    monkeypatch.setattr(script, "make_accelerator", lambda *a: pytest.fail("the suite is made next"))
    status, text = answer(capsys, *words.split())
    assert status == 2
    assert said in text


def config_of(*words, **settings):
    return make_config(make_parser().parse_args(words), settings)


def test_every_option_is_a_flag():
    config = config_of(
        *("--num-workers", "0", "--temperature=0.5", "--delta", "none", "--no-preflight", "--recompute-logprobs"),
        *("--report-to", "none", "--chat-template-kwargs", '{"enable_thinking": false}', "--loss_type", "token-mean"),
    )
    assert (config.num_workers, config.temperature, config.delta, config.preflight) == (0, 0.5, None, False)
    assert (config.recompute_logprobs, config.report_to, config.loss_type) == (True, (), "token-mean")
    assert config.chat_template_kwargs == {"enable_thinking": False}
    assert config_of("--set", "beta=0.5", "--beta", "0.25").beta == 0.25
    assert config_of(beta=0.5).beta == 0.5
    with pytest.raises(SystemExit, match="top_p must be"):
        config_of("--top-p", "2")


YAML = """
credit: agent_opsd
credit_options: {lam: 0.3, gamma: 0.9}
learning_rate: 1e-4
sampling:
  temperature: 0.9
lora-rank: 4
eval_only: true
seeds: [0, 1]
"""


def test_a_file_holds_options_and_flags_and_what_is_typed_wins(tmp_path):
    (tmp_path / "run.yaml").write_text(YAML)
    (tmp_path / "run.json").write_text(json.dumps(read_options(str(tmp_path / "run.yaml"))))
    for name in ("run.yaml", "run.json"):
        words = ["--config", str(tmp_path / name), "--credit-option", "lam=0.2", "--lora-rank", "8"]
        args = make_parser().parse_args(words)
        config = make_config(args, {"learning_rate": 1.0, "top_p": 0.5})
        assert (config.learning_rate, config.temperature, config.top_p) == (1e-4, 0.9, 0.5)
        assert config.credit_options == {"lam": 0.2, "gamma": 0.9}
        assert (args.lora_rank, args.eval_only, args.seeds) == (8, True, [0, 1])
        assert "eval_only" not in args.given
        assert config_of(*words, "--learning-rate", "1e-5").learning_rate == 1e-5
        assert (
            config_of("--config", str(tmp_path / name), "--credit", "grpo", "--credit-option", "eps=1").credit == "grpo"
        )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("learning_rat: 1", "got 'learning_rat'; did you mean 'learning_rate'"),
        ("sampling: {temprature: 1}", "got 'temprature'; did you mean 'temperature'"),
        ("lora_rnak: 4", "got 'lora_rnak'; did you mean 'lora_rank'"),
        ("credit: gpro", "got 'gpro'; did you mean 'grpo'"),
        ("- a", "must hold one object"),
        ("a: [", "must be a YAML file"),
    ],
)
def test_a_file_with_an_unknown_entry_is_refused(text, said, tmp_path):
    (tmp_path / "run.yml").write_text(text)
    with pytest.raises(SystemExit, match=said):
        make_parser().parse_args(["--config", str(tmp_path / "run.yml")])


def test_the_file_of_the_documentation_is_one(tmp_path):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (tmp_path / "run.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    parser = make_parser()
    benchmarks.get_benchmark("webshop").add_flags(parser)
    args = parser.parse_args(["--config", str(tmp_path / "run.yaml")])
    assert (args.num_eval_goals, args.seeds) == (16, [0, 1, 2])
    assert make_config(args, {}).credit_options == {"lam": 0.3}


def test_a_benchmark_of_ones_own_is_trained_with_several_seeds(tmp_path, monkeypatch, capsys):
    settings = tiny_model().config.to_dict()
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "max_position_embeddings", "eos_token_id", "pad_token_id")
    # of a family whose tokenizer class leaves a tokenizer of ours alone when it is read back
    LlamaForCausalLM(LlamaConfig(**{name: settings[name] for name in names})).save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (tmp_path / "my_own_benchmark.py").write_text(page.split("```python\n")[1].split("```")[0])
    (tmp_path / "my_suite.py").write_text("from helpers.toy import ToySuite\nMySuite = lambda data: ToySuite()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(report, "plot_learning_curve", lambda *a: False)
    small = "--max-steps 1 --num-workers 0 --max-completion-length 4 --num-tasks 2 --num-generations 2"
    words = f"--import my_own_benchmark --model model {small} --num-eval-tasks 2 --no-preflight".split()
    with mock.patch.dict(benchmarks._BENCHMARKS), mock.patch.dict(sys.modules):
        assert main(["train", "mine", *words, "--seeds", "3", "4"]) == 0
        said = capsys.readouterr().out
        assert main(["train", "mine", *words, "--seed", "4", "--output-dir", "alone"]) == 0
        assert main(["train", "mine", *words, "--seeds", "3", "4", "--resume", "--max-steps", "2"]) == 0
    assert "success over 2 seeds: " in said
    assert "seed 4: success " in said
    found = json.loads(Path("outputs/mine/seeds.json").read_text())
    assert (found["seeds"], len(found["success"]["after"]["values"])) == ([3, 4], 2)
    log = read_metrics(Path("outputs/mine/seed_4/metrics.jsonl"))
    assert [line["step"] for line in log] == [0, 1, 2]
    alone = read_metrics(Path("alone/metrics.jsonl"))[1]
    untimed = {name: value for name, value in alone.items() if name.startswith(("rollout/", "train/"))}
    assert {name: value for name, value in log[1].items() if name in untimed} == untimed


def test_a_name_that_is_taken_is_no_name_for_a_benchmark():
    with pytest.raises(ValueError, match="name must be new, got 'webshop'"):
        benchmarks.register_benchmark(benchmarks.Benchmark("webshop", lambda args: ToySuite()))


def test_without_a_checkout_a_model_is_asked_for(monkeypatch, tmp_path, capsys):
    from turncredit.trainers.launch.suites import webshop

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarks, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert benchmarks.embedded_policy("webshop") is None
    monkeypatch.setattr(webshop, "BENCHMARK", replace(webshop.BENCHMARK, embedded=None))
    status, text = answer(capsys, "train", "webshop")
    assert status == 1
    assert "--model must name the policy to train" in text


def test_doctor_says_what_is_missing_for_what(monkeypatch, tmp_path):
    lines: list[str] = []
    known_versions = doctor._version
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "peft" else known_versions(name) or "1.0")
    assert doctor.doctor(lines.append) == 0
    text = "\n".join(lines)
    assert 'missing peft for --lora-rank, adapters; run: pip install "turncredit[lora]"' in text
    assert "nowhere is no folder" in text
    assert any(line.split()[:1] == ["torch"] for line in lines)
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "datasets" else "1.0")
    assert doctor.doctor(lines.append) == 1
    assert lines[-1] == "missing, and needed: datasets; run: pip install datasets"


def test_doctor_knows_what_is_installed_with_what():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    for name in doctor.CORE:
        assert f'"{name}>' in setup, name
    for extra, (_, packages) in doctor.EXTRAS.items():
        assert f'"{extra}": [' in setup, extra
        assert all(f'"{name}' in setup for name in packages), extra
