"""Trajectories on disk: one self-describing JSON-lines file that reads back identically.

One trajectory a line and nothing else, so that ``pandas.read_json(path, lines=True)`` and ``load_dataset("json", ..)``
give the episodes. What makes the file check itself stands in each line's first key, ``turncredit``: format and version,
the line's place, how many there are, and the SHA-256 of all lines up to this one, so that a truncated or altered file
is noticed. Floats are written by ``repr`` and come back bit for bit. A name that ends in ``.gz`` is compressed.
Version 1, with a header and a footer line, is still read.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .types import Trajectory, Turn

FORMAT = "turncredit.trajectories"
VERSION = 2
KEY = "turncredit"
_SPARSE = ("message", "teacher_logprobs")  # of a turn; written where there is one


def _encode(trajectory: Trajectory) -> str:
    turns = [{k: v for k, v in vars(turn).items() if v is not None or k not in _SPARSE} for turn in trajectory.turns]
    line = json.dumps({**vars(trajectory), "turns": turns}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # UTF-8 cannot hold a lone surrogate, JSON's escape can
    return line if line.isascii() else re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", line)


def _decode(record: dict[str, Any]) -> Trajectory:
    turns = []
    for turn in record.pop("turns"):
        turn["messages"] = tuple(turn["messages"])
        turns.append(Turn(**turn))
    return Trajectory(turns=tuple(turns), **record)


def _head(place: int, count: int, digest: str) -> str:
    """What a line begins with; the trajectory follows."""
    known = {"format": FORMAT, "version": VERSION, "episode": place, "episodes": count, "sha256": digest}
    return f'{{"{KEY}":{json.dumps(known, separators=(",", ":"))},'


def _with_heads(lines: Sequence[str]) -> Iterable[str]:
    digest = hashlib.sha256()
    for place, line in enumerate(lines):
        digest.update(line.encode())
        yield _head(place, len(lines), digest.hexdigest()) + line[1:]


def save_trajectories(trajectories: Iterable[Trajectory], path: str | os.PathLike[str]) -> Path:
    """Write trajectories to `path`, atomically: readers see the old file or the whole new one.

    Args:
        trajectories: any number of them, none included (a file of one empty line).
        path: file name; ``.jsonl`` by convention, ``.jsonl.gz`` for a compressed file. Parent folders are made.

    Returns:
        The path written.

    Raises:
        OSError: the file cannot be written; nothing is left behind and an earlier file is untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = ("\n".join(_with_heads([_encode(trajectory) for trajectory in trajectories])) + "\n").encode()
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


def is_ours(data: bytes) -> bool:
    """Whether the decompressed start of a file is what `save_trajectories` writes, or wrote."""
    start = data.lstrip()[:200]
    return start.startswith((f'{{"{KEY}":{{"format":"{FORMAT}"'.encode(), f'{{"format": "{FORMAT}"'.encode()))


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
    if data == b"\n":
        return []
    lines, header = _lines_and_header(data)
    if header.get("format") != FORMAT:
        raise ValueError(f"{where} must start with a {FORMAT!r} header, got something else; is it another file?")
    if header["version"] > VERSION:
        raise ValueError(
            f"{where} must have format version {VERSION} or less, got {header['version']}; update turncredit"
        )
    read = _read_with_header if header["version"] == 1 else _read_lines
    return [_decode(json.loads(line)) for line in read(lines, header, where)]


def _lines_and_header(data: bytes) -> tuple[list[str], dict[str, Any]]:
    """The lines, and what the first says of the file; {} where it says nothing."""
    first = data.partition(b"\n")[0]
    try:
        lines = data.decode().split("\n") if is_ours(first) else []
        header = json.loads(first) if lines else {}
    except UnicodeDecodeError:
        return [], {}
    except json.JSONDecodeError:  # the first line was cut
        return lines, {"format": FORMAT, "version": VERSION, "episodes": 1}
    return lines, header.get(KEY, header)


def _read_lines(lines: list[str], header: dict[str, Any], where: str) -> list[str]:
    """Trajectories of version 2 as JSON."""
    count, rows = header["episodes"], [line for line in lines if line]
    digest, bodies = hashlib.sha256(), []
    for place, line in enumerate(rows):
        end = line.find("}") + 2
        body = "{" + line[end:]
        digest.update(body.encode())
        if line[:end] != _head(place, count, digest.hexdigest()):
            cut = place == len(rows) - 1 and not line.endswith("}")
            raise _truncated(where, count, place) if cut else _altered(where)
        bodies.append(body)
    if len(rows) != count:
        raise _truncated(where, count, len(rows))
    return bodies


def _read_with_header(lines: list[str], header: dict[str, Any], where: str) -> list[str]:
    """Trajectories of version 1 as JSON, between a header with their number and a footer with their digest."""
    count = header["count"]
    try:
        footer = json.loads(lines[count + 1])
        complete = footer == {"end": count, "sha256": footer["sha256"]}
    except (IndexError, json.JSONDecodeError, KeyError, TypeError):
        complete, footer = False, {}
    if not complete:
        raise _truncated(where, count, max(len(lines) - 2, 0))
    body = lines[1 : count + 1]
    if hashlib.sha256("\n".join(body).encode()).hexdigest() != footer["sha256"]:
        raise _altered(where)
    return body


def _truncated(where: str, count: int, got: int) -> ValueError:
    return ValueError(
        f"{where} must hold {count} trajectories and their end, got {got} lines; the file was truncated, use an "
        "earlier copy"
    )


def _altered(where: str) -> ValueError:
    return ValueError(f"{where} must match its checksum, but its content was altered; use an earlier copy")
