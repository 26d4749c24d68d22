"""The planner library, loaded once per engine without the debug information that its build leaves in it."""

from __future__ import annotations

import os
import struct
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from fast_downward import interface

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of a 64-bit ELF file, little-endian
_SEGMENT = struct.Struct("<IIQQQQQQ")


def load_planner() -> Any:
    """A copy of the planner library of its own, as `fast_downward.load_lib` loads it.

    Every copy is written anew, because the loader takes one file for one library. Of the 34 MB that a build with debug
    information leaves 1 MB is loaded, and only that is written.
    """
    whole = interface.DOWNWARD_LIB_PATH
    if not os.path.isfile(whole):
        return interface.load_lib()  # which says what is missing
    with tempfile.TemporaryDirectory() as folder:
        lean = Path(folder, "loadable.so")
        lean.write_bytes(_loadable_of(whole))
        interface.DOWNWARD_LIB_PATH = str(lean)
        try:
            return interface.load_lib()
        finally:
            interface.DOWNWARD_LIB_PATH = whole


@lru_cache(maxsize=1)
def _loadable_of(path: str) -> bytes:
    return loadable(Path(path).read_bytes())


def loadable(library: bytes) -> bytes:
    """A shared library without what follows its segments (debug information, names of sections).

    The loader reads segments alone. Whatever is no little-endian 64-bit ELF file comes back as it is.
    """
    if len(library) < _HEADER.size or library[:6] != b"\x7fELF\x02\x01":
        return library
    header = list(_HEADER.unpack_from(library))
    start, size, count = header[5], header[9], header[10]
    if size != _SEGMENT.size or start + size * count > len(library):
        return library
    segments = (_SEGMENT.unpack_from(library, start + size * number) for number in range(count))
    end = max([start + size * count, *(offset + in_file for _, _, offset, _, _, in_file, _, _ in segments)])
    header[6], header[12], header[13] = 0, 0, 0  # where sections are described, how many there are, who names them
    return _HEADER.pack(*header) + library[_HEADER.size : end]
