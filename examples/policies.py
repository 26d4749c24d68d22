"""Which policy a training example was asked for, and whether it reads the embedded policy's compact prompts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from turncredit.trainers.resume import RUN_CARD, find_run


def resolve_policy(args: argparse.Namespace, embedded: Path, suite: str, output_dir: str) -> None:
    """Set ``args.model`` to what is loaded and ``args.embedded`` to whether it is the embedded policy, trained or not.

    ``--model`` may name a checkpoint of a run; ``--eval-only`` with ``--resume`` is the newest checkpoint of the output
    folder, or the one that ``--resume`` names.

    Args:
        args: the parsed flags.
        embedded: folder of the embedded policy.
        suite: name of the suite, which a policy of compact prompts was trained on.
        output_dir: the run's folder.
    """
    source = args.model
    if args.eval_only and args.resume:
        try:
            found = find_run(Path(output_dir) / "checkpoints", args.resume)
        except (OSError, ValueError) as error:
            raise SystemExit(f"--resume: {error}") from None
        if found is None:
            raise SystemExit(f"--resume: there is no checkpoint in {output_dir}; name one, or train first")
        source = str(found)
    args.embedded = source is None
    if source is None:
        return
    folder = Path(source)
    if (folder / "trainer_state.json").is_file():
        folder = folder / "model"
    elif (folder / "checkpoints").is_dir():
        raise SystemExit(f"--model: {source} is a run; name one of its checkpoints, such as checkpoints/step-000020")
    args.model = str(folder) if folder.is_dir() else source
    args.embedded = folder.is_dir() and _reads_compact_prompts(folder, embedded, suite)


def _reads_compact_prompts(folder: Path, embedded: Path, suite: str) -> bool:
    """By what the trainer noted beside the model, or, where it noted nothing, by the vocabulary."""
    try:
        known: dict[str, Any] = json.loads((folder / RUN_CARD).read_text(encoding="utf-8"))["suite"]
    except (OSError, ValueError, KeyError, TypeError):
        return _vocabulary(folder) == _vocabulary(embedded)
    compact = known.get("build_messages") == "compact_messages"
    if compact and known.get("name") != suite:
        raise SystemExit(f"--model: {folder} was trained on compact prompts of {known.get('name')}, not of {suite}")
    return compact


def _vocabulary(folder: Path) -> Any:
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
