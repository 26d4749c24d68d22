"""Trajectories on disk: one self-describing JSON-lines file that reads back identically.

Line 1 is a header with the format's name, its version and the number of trajectories; then one trajectory a line; the
last line repeats the count with a SHA-256 of everything between, so that a truncated or altered file is noticed.
Floats are written by ``repr`` and come back bit for bit. A name that ends in ``.gz`` is compressed.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .types import Trajectory, Turn

FORMAT = "turncredit.trajectories"
VERSION = 1


def _encode(trajectory: Trajectory) -> str:
    record = {**vars(trajectory), "turns": [vars(turn) for turn in trajectory.turns]}  # asdict would copy all ids
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # UTF-8 cannot hold a lone surrogate, JSON's escape can
    return line if line.isascii() else re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", line)


def _decode(record: dict[str, Any]) -> Trajectory:
    turns = []
    for turn in record.pop("turns"):
        turn["messages"] = tuple(turn["messages"])
        turns.append(Turn(**turn))
    return Trajectory(turns=tuple(turns), **record)


def save_trajectories(trajectories: Iterable[Trajectory], path: str | os.PathLike[str]) -> Path:
    """Write trajectories to `path`, atomically: readers see the old file or the whole new one.

    Args:
        trajectories: any number of them, none included.
        path: file name; ``.jsonl`` by convention, ``.jsonl.gz`` for a compressed file. Parent folders are made.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written; nothing is left behind and an earlier file is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [_encode(trajectory) for trajectory in trajectories]
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    header = json.dumps({"format": FORMAT, "version": VERSION, "count": len(lines)})
    footer = json.dumps({"end": len(lines), "sha256": digest})
    data = ("\n".join([header, *lines, footer]) + "\n").encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def load_trajectories(path: str | os.PathLike[str]) -> list[Trajectory]:
    """Read what `save_trajectories` wrote; equal to what was saved, field for field.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is foreign, from a newer version, truncated or altered; the message says which.
    """
    path = Path(path)
    data = path.read_bytes()
    where = f"load_trajectories: {path}"
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise ValueError(f"{where} must be a whole gzip file, got a damaged one ({error}); copy it again") from None
    try:
        lines = data.decode().split("\n")
        header = json.loads(lines[0])
        foreign = not isinstance(header, dict) or header.get("format") != FORMAT
    except (UnicodeDecodeError, json.JSONDecodeError):
        foreign, header, lines = True, {}, []
    if foreign:
        raise ValueError(f"{where} must start with a {FORMAT!r} header, got something else; is it another file?")
    if header["version"] > VERSION:
        raise ValueError(
            f"{where} must have format version {VERSION} or less, got {header['version']}; update turncredit"
        )
    count = header["count"]
    try:
        footer = json.loads(lines[count + 1])
        complete = footer == {"end": count, "sha256": footer["sha256"]}
    except (IndexError, json.JSONDecodeError, KeyError, TypeError):
        complete, footer = False, {}
    if not complete:
        raise ValueError(
            f"{where} must hold {count} trajectories and an end line, got {max(len(lines) - 2, 0)} lines; "
            "the file was truncated, use an earlier copy"
        )
    body = lines[1 : count + 1]
    if hashlib.sha256("\n".join(body).encode()).hexdigest() != footer["sha256"]:
        raise ValueError(f"{where} must match its checksum, but its content was altered; use an earlier copy")
    return [_decode(json.loads(line)) for line in body]
