"""Traces from anywhere: files and objects in, trajectories out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..io import is_ours, load_trajectories
from ..types import Trajectory
from .build import Groups, Options, Reader, trajectory_of
from .files import decompressed, files_of, records_of, records_of_file
from .records import Broken, Skip, Trace, TraceError
from .registry import TraceFormat, detect, get_trace_format, list_trace_formats

logger = logging.getLogger(__name__)


class Traces(list[Trajectory]):
    """Imported trajectories, and what was left out: ``skipped`` says which records and why."""

    skipped: tuple[Skip, ...] = ()


def load_traces(
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    reward: Reader = None,
    success: Reader = None,
    group_by: Reader = None,
    join_assistant: bool = False,
    on_error: str = "raise",
) -> Traces:
    """Trajectories out of a file or folder of traces that something else wrote; docs/traces.md lists the formats.

    Every assistant message behind the first user message is a turn, but those marked as demonstrations; what stands
    before, examples inside a system or first message too, is prompt. Turns come without token ids, which
    `turncredit.rollout.score_traces` makes.

    Args:
        path: JSON, JSON lines, parquet, ``.traj`` or a text log, compressed or not; or a folder of them.
        format: one of `list_trace_formats`; None finds it out.
        reward: where the return stands: a name (``"info.score"``), a mapping from task to reward, or a function of the
            record. None looks under the usual names. One reward a turn is taken as such and summed.
        success: the same for success in [0, 1]; where nothing says it, a return of at least 1 is success.
        group_by: what makes a group: ``"task"``, ``"prompt"`` (all of the first prompt), a name or a function; None is
            the task where the record names one (for TRL and verl the step and prompt), else the prompt.
        join_assistant: whether several assistant messages in a row are one turn; otherwise they are an error.
        on_error: ``"raise"``, or ``"skip"`` to leave out what is wrong: it is logged, and listed in ``.skipped``.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: an unknown format or none that fits, a wrong trace, or nothing that could be read.
    """
    where, records = f"load_traces: {path}", []
    options = Options(reward, success, group_by, join_assistant)
    files = files_of(Path(path))
    for file in files:
        data = decompressed(file)
        if format in (None, "turncredit") and (is_ours(data) or format is not None):
            if len(files) == 1:
                return Traces(load_trajectories(file))
            raise ValueError(f"{where} must hold traces, got {file.name} of this library's own; load it by itself")
        records += records_of_file(file, data)
    return _imported(records, format, options, on_error, where)


def trajectories_from(
    objects: Any,
    format: str | None = None,
    *,
    reward: Reader = None,
    success: Reader = None,
    group_by: Reader = None,
    join_assistant: bool = False,
    on_error: str = "raise",
) -> Traces:
    """Trajectories out of traces in memory; arguments but the first as in `load_traces`.

    Args:
        objects: a record or a list of them, a list of messages or a list of those, a pandas frame, a
            `datasets.Dataset`.
    """
    options = Options(reward, success, group_by, join_assistant)
    return _imported(records_of(objects), format, options, on_error, "trajectories_from: objects")


def _imported(records: Sequence[Any], name: str | None, options: Options, on_error: str, where: str) -> Traces:
    if on_error not in ("raise", "skip"):
        raise ValueError(f'load_traces: on_error must be "raise" or "skip", got {on_error!r}; pick one of them')
    chosen = get_trace_format(name) if name is not None else _detected(records, where)
    if chosen is not None and chosen.expand is not None:
        records = chosen.expand(records)
    groups, traces, skipped = Groups(), Traces(), []
    for place, record in enumerate(records):
        try:
            traces.append(trajectory_of(_read(chosen, record), options, groups))
        except ValueError as error:
            if on_error == "raise":
                raise ValueError(f"{where}: trace {place}: {error} (on_error='skip' leaves such traces out)") from error
            skipped.append(Skip(place, str(error)))
    traces.skipped = tuple(skipped)
    if not traces:
        first = f"; the first: {skipped[0].reason}" if skipped else ""
        raise ValueError(f"{where} must hold a trace, got none out of {len(records)} records{first}")
    if skipped:
        logger.warning("%s: %d of %d traces were left out: %s", where, len(skipped), len(records), _told(skipped))
    return traces


def _told(skipped: Iterable[Skip]) -> str:
    lines = [f"trace {skip.place}: {skip.reason}" for skip in skipped]
    return "; ".join(lines[:3]) + (f"; and {len(lines) - 3} more, see .skipped" if len(lines) > 3 else "")


def _detected(records: Sequence[Any], where: str) -> TraceFormat | None:
    """The format of the first record that is of any; None where none could be read at all.

    Raises:
        ValueError: records were read, and none is of a known format.
    """
    whole = [record for record in records if isinstance(record, Mapping)]
    for record in whole:
        fitting = detect(record)
        if fitting is not None:
            return fitting
    if not whole:
        kinds = sorted({type(record).__name__ for record in records if not isinstance(record, Broken)})
        if kinds:
            raise ValueError(f"{where} must hold records of named fields, got {kinds}; see docs/traces.md")
        return None
    raise ValueError(
        f"{where} must be of a known format, {list_trace_formats()}, got records with the keys "
        f"{sorted(map(str, whole[0]))[:12]}; name the format, or define it with register_trace_format"
    )


def _read(chosen: TraceFormat | None, record: Any) -> Trace:
    if isinstance(record, Broken):
        raise TraceError(record.reason)
    if chosen is None or not isinstance(record, Mapping):
        raise TraceError(f"the record must have named fields, got {type(record).__name__}; see docs/traces.md")
    try:
        return chosen.read(record)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise TraceError(
            f"the record must be of format {chosen.name!r}, got {type(error).__name__}: {error}, with keys "
            f"{sorted(map(str, record))[:12]}; is it of another?"
        ) from error
