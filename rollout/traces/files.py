"""Records out of files, tables and objects."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .messages import is_chat
from .records import Broken

_JSON, _LINES, _TEXT = (".json", ".traj"), (".jsonl", ".ndjson"), (".txt", ".log")
SUFFIXES = (*_JSON, *_LINES, *_TEXT, ".parquet")
_WRAPPERS = ("data", "traces", "rollouts", "trajectories", "results", "episodes")


def suffix_of(path: Path) -> str:
    """The kind of file that a name says, compressed or not."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def files_of(path: Path) -> list[Path]:
    """The file, or all files of known kinds in a folder, by name.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: a folder without any.
    """
    if not path.exists():
        raise FileNotFoundError(f"load_traces: path must be a file or folder, got {path}, which does not exist")
    if path.is_file():
        return [path]
    known = [p for p in sorted(path.rglob("*")) if p.is_file() and suffix_of(p) in SUFFIXES and p.name[0] != "."]
    if not known:
        raise ValueError(f"load_traces: path must hold files of {list(SUFFIXES)}, got none in {path}; name a file")
    return known


def records_of_file(path: Path, data: bytes) -> list[Any]:
    """The records of a file's decompressed content; what cannot be read of it is `Broken`."""
    kind = suffix_of(path)
    if kind == ".parquet":
        import io

        import pyarrow.parquet

        return [clean(row) for row in pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist()]
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if kind in _TEXT and text.lstrip()[:1] not in ("{", "["):
        return [{"text": text}]
    try:
        records = records_of(json.loads(text))
    except json.JSONDecodeError as error:
        if kind in _JSON and error.msg != "Extra data":
            return [Broken(f"the file must be JSON, got {error}; it was cut or is another kind of file")]
        return _lines(text)
    named = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".traj")
    if (
        len(records) == 1
        and isinstance(records[0], Mapping)
        and ("trajectory" in records[0] or "trajectory_format" in records[0])
    ):
        return [{"instance_id": named, **records[0]}]  # an agent's file is called after its task
    return records


def _lines(text: str) -> list[Any]:
    records: list[Any] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            records.append(Broken(f"line {number} must be JSON, got {error}; it was cut or altered"))
    return [{"messages": record} if is_chat(record) else record for record in records]


def records_of(objects: Any) -> list[Any]:
    """Records of a list, a single one, a pandas frame, a `datasets.Dataset` or any iterable of mappings."""
    if hasattr(objects, "to_dict") and hasattr(objects, "columns"):  # pandas
        return [clean(row) for row in objects.to_dict("records")]
    if isinstance(objects, Mapping):
        inner = [objects[name] for name in _WRAPPERS if isinstance(objects.get(name), list)]
        return records_of(inner[0]) if len(inner) == 1 and not is_chat(inner[0]) else [objects]
    if is_chat(objects):
        return [{"messages": objects}]
    if isinstance(objects, str) or not isinstance(objects, Iterable):
        raise TypeError(
            f"trajectories_from: objects must be records, a table or a list of them, got {type(objects).__name__}; "
            "load_traces reads files"
        )
    table = hasattr(objects, "features")  # datasets
    records = [clean(record) if table else record for record in objects]
    return [{"messages": record} if is_chat(record) else record for record in records]


def clean(value: Any) -> Any:
    """A cell of a table: arrays as lists, and without the keys that a column adds to records that lack them."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items() if item is not None}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


def decompressed(path: Path) -> bytes:
    """The content of a file, unpacked where it is a gzip file."""
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
