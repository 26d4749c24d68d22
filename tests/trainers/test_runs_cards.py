"""Cards of models and data sets, and the way to the hub, of which a fake in this process answers."""

import re
from types import SimpleNamespace

import pytest
import torch
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite
from huggingface_hub import DatasetCard, ModelCard
from transformers import AutoModelForCausalLM

from turncredit.rollout import (
    SamplingConfig,
    StopReason,
    Trajectory,
    Turn,
    load_trajectories,
    save_dataset,
)
from turncredit.trainers import GRPOConfig, GRPOTrainer
from turncredit.trainers.cards import model_card


def trainer(folder, model=None, **options):
    config = GRPOConfig(
        str(folder),
        max_steps=1,
        num_tasks=2,
        num_generations=2,
        num_workers=0,
        beta=0.0,
        num_eval_tasks=1,
        credit="gigpo",
        credit_options={"discount": 0.9},
        sampling=SamplingConfig(max_completion_length=4),
        preflight=False,
        logging_steps=0,
    )
    return GRPOTrainer(model or tiny_model(), tiny_tokenizer(), ToySuite(needed=1, lenient=True), config, **options)


@pytest.fixture
def hub(monkeypatch):
    """Stands in for the hub's API; remembers what was asked of it and the bytes that were sent."""
    from transformers.utils import hub as module

    found = SimpleNamespace(created=[], sent={}, message=None)

    def create_repo(repo_id, **options):
        found.created.append((repo_id, options["private"]))
        return SimpleNamespace(repo_id=repo_id)

    def create_commit(repo_id, operations, commit_message, **_):
        found.message = commit_message
        for operation in operations:
            with open(operation.path_or_fileobj, "rb") as file:
                found.sent[operation.path_in_repo] = file.read()
        return f"https://hub/{repo_id}/commit/1"

    api = SimpleNamespace(create_repo=create_repo, create_commit=create_commit)
    monkeypatch.setattr(module, "hf_api", lambda: api)
    monkeypatch.setattr(module, "create_and_tag_model_card", lambda *_, **__: ModelCard("---\ntags: []\n---\nempty"))
    return found


# ---- models


def test_a_card_says_method_data_metrics_versions_and_how_to_load(tmp_path):
    with trainer(tmp_path) as run:
        run.train()
        card = ModelCard(model_card(run))
    assert card.data.library_name == "transformers"
    assert card.data.base_model is None
    assert {"turncredit", "gigpo", "toy"} <= set(card.data.tags)
    for text in (
        "trained on toy with gigpo",
        "trained for 1 updates",
        "| credit_options.discount | 0.9 |",
        "4 training tasks, 1 held-out tasks",
        f"| `eval/success` | {run.evaluation['eval/success']:.4g} |",
        f"| torch | {torch.__version__} |",
    ):
        assert text in card.text, text
    assert str(tmp_path) not in card.content


def test_the_code_of_a_card_runs(tmp_path):
    with trainer(tmp_path) as run:
        run.save_pretrained(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.S)[1].replace("FOLDER", str(tmp_path / "model"))
    names = {}
    exec(code, names)
    assert names["model"].config.model_type == "qwen2"
    assert names["tokenizer"] is not None


def test_every_checkpoint_has_a_card_and_its_manifest_holds_it(tmp_path):
    from turncredit.trainers.checkpoint import verify_checkpoint

    with trainer(tmp_path) as run:
        run.train()
    folder = tmp_path / "checkpoints" / "step-000001"
    assert "its evaluation was not yet made" in (folder / "model" / "README.md").read_text()
    assert verify_checkpoint(folder) is None
    (folder / "model" / "README.md").unlink()
    assert verify_checkpoint(folder) == "model/README.md is missing"


@pytest.mark.parametrize(
    ("source", "name", "base"),
    [("user/base-1B", "base-1B", "user/base-1B"), ("gpt2", "gpt2", "gpt2"), ("/data/models/own", "own", None)],
)
def test_a_base_model_is_named_where_it_is_the_hubs(tmp_path, source, name, base):
    model = tiny_model()
    model.config._name_or_path = source
    with trainer(tmp_path, model) as run:
        card = ModelCard(model_card(run))
    assert card.data.base_model == base
    assert f"# {name} trained on toy" in card.text
    assert "/data" not in card.content


def test_an_adapters_card_loads_an_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    adapter = peft.LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    with trainer(tmp_path, peft_config=adapter) as run:
        run.save_pretrained(tmp_path / "adapter")
    card = ModelCard.load(tmp_path / "adapter" / "README.md")
    assert card.data.library_name == "peft"
    assert "AutoPeftModelForCausalLM.from_pretrained" in card.text
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_a_model_goes_to_the_hub_with_its_card(tmp_path, hub):
    with trainer(tmp_path) as run:
        run.train()
        answer = run.push_to_hub("user/agent", private=True, tags=["mine"])
    assert answer == "https://hub/user/agent/commit/1"
    assert hub.created == [("user/agent", True)]
    assert hub.message == "Model after update 1"
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json", "turncredit.json"} <= hub.sent.keys()
    card = ModelCard(hub.sent["README.md"].decode())
    assert "mine" in card.data.tags
    assert 'from_pretrained("user/agent")' in card.text
    (tmp_path / "sent").mkdir()
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "sent" / name).write_bytes(hub.sent[name])
    sent = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "sent").named_parameters())
    assert all(torch.equal(sent[name], value) for name, value in run.model.named_parameters())


def test_a_hub_that_is_away_leaves_the_trainer_as_it_was(tmp_path, hub, monkeypatch):
    from transformers.utils import hub as module

    def away():
        raise ConnectionError("network away")

    monkeypatch.setattr(module, "hf_api", away)
    with trainer(tmp_path) as run:
        with pytest.raises(ConnectionError, match="network away"):
            run.push_to_hub("user/agent")
        assert run._gathered is None


# ---- trajectories


def trajectories():
    seen = ({"role": "user", "content": "x"},)
    turns = tuple(Turn((7,), (1, 2), (-1.0, -0.5), seen, f"say {n}", action="a", observation="o") for n in range(2))
    return [
        Trajectory("t", "pick", 0, 0, turns, 1.0, 1.0, StopReason.SUCCESS),
        Trajectory("t", "heat", 0, 1, turns[:1], 0.0, 0.0, StopReason.DONE),
        Trajectory("u", "heat", 1, 0, turns[:1], 0.0, 0.0, StopReason.DONE, failure="worker_died"),
    ]


def test_a_data_set_has_a_card_and_loads(tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = save_dataset(trajectories(), tmp_path / "episodes")
    card = DatasetCard.load(folder / "README.md")
    assert card.data.pretty_name == "episodes"
    assert "3 episodes of a language-model agent with 4 turns on 2 tasks; 1 failed" in card.text
    assert "| heat | 2 | 0.000 |" in card.text
    assert "Mean success 0.500" in card.text
    assert load_trajectories(folder / "trajectories.jsonl.gz") == trajectories()
    rows = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))
    assert rows["text"] == ["say 0", "say 1", "say 0", "say 0"]
    described = {name for names in re.findall(r"^\| `(.*?)` \|", card.text, re.M) for name in names.split(", ")}
    assert described == set(rows.column_names)


def test_a_data_set_overwrites_nothing_and_holds_something(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="folder must be new or empty"):
        save_dataset(trajectories(), tmp_path)
    with pytest.raises(ValueError, match="trajectories must have turns, got none"):
        save_dataset([], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_page_of_runs_runs(tmp_path, hub, monkeypatch):
    import sys
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.setitem(sys.modules, "wandb", None)  # what is not there is left out
    monkeypatch.setitem(sys.modules, "trackio", None)
    small = {"num_tasks": 2, "num_generations": 2, "num_workers": 0, "beta": 0.0, "num_eval_tasks": 1}
    small |= {"sampling": SamplingConfig(max_completion_length=4), "preflight": False, "logging_steps": 0}
    names = {"folder": str(tmp_path), "model": tiny_model(), "tokenizer": tiny_tokenizer(), "small": small}
    names["suite"] = ToySuite(needed=1, lenient=True)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 2
    assert hub.created == [("user/agent", True)]
    assert names["again"] == names["trainer"].eval_trajectories
    assert (tmp_path / "final" / "README.md").is_file()
