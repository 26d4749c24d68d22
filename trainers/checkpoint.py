"""Checkpoints that are whole or not there: written beside, checksummed, renamed; the newest good one is used."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d+)$")


@runtime_checkable
class Stateful(Protocol):
    """A part of a run that checkpoints save: what it says of itself goes into a file and comes back.

    Every process makes both calls; process 0's answer, tensors and plain values, is saved and comes back to all. With a
    method ``reset()`` the part is told to begin anew where a checkpoint does not hold it.
    """

    def state_dict(self) -> Mapping[str, Any]:
        """What to save."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> Any:
        """Take back what `state_dict` said."""
        ...


@runtime_checkable
class Ahead(Stateful, Protocol):
    """A part that learns inside of an update, before the policy does.

    While `ahead` is True no checkpoint is written: it would hold a half of an update. `finished` is called behind every
    update, and has to make it False.
    """

    ahead: bool

    def finished(self) -> None:
        """The update is finished."""
        ...


def write_part(folder: Path, name: str, state: Mapping[str, Any]) -> None:
    """Write a part's state, as safetensors where it holds tensors only."""
    if state and all(isinstance(value, Tensor) for value in state.values()):
        save_file({key: value.contiguous() for key, value in state.items()}, folder / f"{name}.safetensors")
    else:
        torch.save(dict(state), folder / f"{name}.pt")


def read_part(folder: Path, name: str) -> dict[str, Any] | None:
    """What `write_part` wrote, or None where the checkpoint holds no such part."""
    if (file := folder / f"{name}.safetensors").is_file():
        return load_file(file)
    file = folder / f"{name}.pt"
    return torch.load(file, weights_only=True, map_location="cpu") if file.is_file() else None


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checkpoint_folder(root: Path, step: int) -> Path:
    """Where the checkpoint of an update lies."""
    return root / f"step-{step:06d}"


def write_checkpoint(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a temporary folder, add checksums, and rename it into place.

    Raises:
        OSError: the disk is full or the folder cannot be written; earlier checkpoints are untouched.
    """
    root.mkdir(parents=True, exist_ok=True)
    final = checkpoint_folder(root, step)
    temporary = root / f".{final.name}.{os.getpid()}.tmp"
    for left in root.glob(".step-*.tmp"):  # by a run that was killed; a run has its folder to itself
        shutil.rmtree(left, ignore_errors=True)
    temporary.mkdir()
    try:
        write(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        sums = {str(path.relative_to(temporary)): _digest(path) for path in files}
        with open(temporary / MANIFEST, "w", encoding="utf-8") as file:
            json.dump(sums, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        former = root / f".{final.name}.former.tmp"
        if final.exists():  # removing takes long, and a kill in between would cost both
            os.replace(final, former)
        os.replace(temporary, final)
        shutil.rmtree(former, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return final


def replace_text(path: Path, text: str) -> None:
    """Write a small file so that readers see the old one or the whole new one.

    Raises:
        OSError: it cannot be written; an earlier file is untouched.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def verify_checkpoint(folder: Path) -> str | None:
    """None when every file is there with its checksum, else what is wrong."""
    try:
        sums = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        return f"{MANIFEST} is missing or unreadable ({type(error).__name__})"
    for name, digest in sums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if _digest(folder / name) != digest:
            return f"{name} does not match its checksum"
    return None


def list_checkpoints(root: Path) -> list[Path]:
    """Checkpoint folders under `root`, oldest first; unfinished temporary ones are not among them."""
    found = [path for path in root.glob("step-*") if path.is_dir() and _NAME.search(path.name)]
    return sorted(found, key=lambda path: int(_NAME.search(path.name).group(1)))  # type: ignore[union-attr]


def latest_checkpoint(root: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that verifies, and a line about each newer one that does not."""
    complaints = []
    for folder in reversed(list_checkpoints(root)):
        problem = verify_checkpoint(folder)
        if problem is None:
            return folder, complaints
        complaints.append(f"{folder.name}: {problem}")
    return None, complaints


def prune_checkpoints(root: Path, limit: int | None, keep: Path | None = None) -> None:
    """Remove the oldest checkpoints beyond `limit`, never the newest good one.

    Args:
        root: their folder.
        limit: how many stay; None keeps all.
        keep: one that is known to be good, such as the one just written; None reads them to find the newest good one.
    """
    if limit is None:
        return
    good = keep or latest_checkpoint(root)[0]
    for folder in list_checkpoints(root)[:-limit]:
        if folder != good:
            shutil.rmtree(folder)
