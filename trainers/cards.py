"""Model cards: what a saved model was trained with, on what, how well it did, and how it is loaded."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCardData

from .identity import is_adapted, plain

if TYPE_CHECKING:
    from .grpo import GRPOTrainer

CARD = "README.md"

_PACKAGES = ("turncredit", "torch", "transformers", "accelerate", "peft", "deepspeed")
_OPTIONS = (
    *("num_tasks", "num_generations", "learning_rate", "beta", "entropy_coef", "epsilon", "epsilon_high", "loss_type"),
    *("num_iterations", "num_minibatches", "seed"),
)
_METRICS = ("eval/success", "eval/reward", "eval/turns", "rollout/success", "rollout/reward", "rollout/invalid_turns")


def model_card(trainer: GRPOTrainer, repo_id: str | None = None, tags: Iterable[str] = ()) -> str:
    """The text of a ``README.md`` beside a saved model, with the header that the hub reads.

    Args:
        trainer: after the update whose model is saved.
        repo_id: the model's name on the hub; None for a folder.
        tags: further ones.
    """
    adapted, suite = is_adapted(trainer.model), trainer.suite.name
    name, base = base_model(trainer)
    method = trainer.config.credit
    header = ModelCardData(
        base_model=base,
        library_name="peft" if adapted else "transformers",
        pipeline_tag="text-generation",
        tags=["turncredit", "reinforcement-learning", "agent", method, suite, *tags],
        ignore_metadata_errors=True,
    )
    parts = [
        f"---\n{header.to_yaml()}\n---",
        f"# {name} trained on {suite} with {method}",
        f"{'An adapter of ' if adapted else ''}{name}, trained for {trainer.step} updates of reinforcement learning "
        f"with turn-level credit (`{method}` of turncredit) on the task suite `{suite}`.",
        "## How to load it",
        _loading(adapted, repo_id),
        "## Method",
        _table("option", "value", _method_rows(trainer)),
        "## Data",
        _data(trainer),
        "## Metrics",
        _metrics(trainer),
        "## Versions",
        _table("package", "version", _versions()),
    ]
    return "\n\n".join(parts) + "\n"


def base_model(trainer: GRPOTrainer) -> tuple[str, str | None]:
    """What the trained model was called, for a reader, and its name on the hub, None for one from a folder."""
    config = trainer.model.config
    source = str(getattr(config, "_name_or_path", "") or "")
    if not source:
        return str(getattr(config, "model_type", "model")), None
    on_hub = source.count("/") <= 1 and not Path(source).exists() and not Path(source).is_absolute()
    return Path(source).name, source if on_hub else None


def _loading(adapted: bool, repo_id: str | None) -> str:
    kind, package = ("AutoPeftModelForCausalLM", "peft") if adapted else ("AutoModelForCausalLM", "transformers")
    own = f"from {package} import {kind}\nfrom transformers import AutoTokenizer"
    imports = own if adapted else f"from transformers import {kind}, AutoTokenizer"
    place = json.dumps(repo_id or "FOLDER")
    where = "" if repo_id else "`FOLDER` is the folder of this file.\n\n"
    return (
        f"{where}```python\n{imports}\n\nmodel = {kind}.from_pretrained({place})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({place})\n```\n\n"
        "Prompts have to be those of the suite that it was trained on; `turncredit.json` says with which options."
    )


def _method_rows(trainer: GRPOTrainer) -> list[tuple[str, Any]]:
    config = trainer.config
    rows: list[tuple[str, Any]] = [("credit", config.credit)]
    rows += [(f"credit_options.{name}", value) for name, value in plain(config.credit_options).items()]
    rows += [(name, getattr(config, name)) for name in _OPTIONS]
    rows += [(name, getattr(config.sampling, name)) for name in ("temperature", "top_p", "top_k")]
    return rows


def _data(trainer: GRPOTrainer) -> str:
    suite = {name: value for name, value in trainer.description["suite"].items() if _is_short(value)}
    lines = f"{len(trainer.train_tasks)} training tasks, {len(trainer.eval_tasks)} held-out tasks in the panel."
    return f"{lines}\n\n{_table('of the suite', 'value', suite.items())}" if suite else lines


def _is_short(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 60)


def _metrics(trainer: GRPOTrainer) -> str:
    found = {**(trainer.update_metrics or {}), **(trainer.evaluation or {})}
    rows = [(f"`{name}`", f"{found[name]:.4g}") for name in _METRICS if name in found]
    text = f"After update {trainer.step}: `rollout/` of its training rollouts, `eval/` of the held-out panel"
    text += "." if "eval/success" in found else "; its evaluation was not yet made when this was written."
    best = trainer.best
    if best:
        text += f" Best evaluation so far: success {best['success']:.4g} after update {int(best['step'])}."
    return f"{text}\n\n{_table('metric', 'value', rows)}" if rows else text


def _versions() -> Mapping[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _table(left: str, right: str, rows: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    pairs = rows.items() if isinstance(rows, Mapping) else rows
    cells = [f"| {name} | {str(value).replace('|', '/')} |" for name, value in pairs]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *cells])
