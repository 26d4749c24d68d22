"""Modules of one's own, which register methods, environments and whatever else by name."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from pathlib import Path


def import_methods(modules: Iterable[str]) -> None:
    """Import modules, or files that end in ``.py``, so that the methods they register are there by name.

    Raises:
        SystemExit: there is no such module or file; what one raises itself is not touched.
    """
    for module in modules:
        path = Path(module)
        if path.suffix != ".py":
            if os.getcwd() not in sys.path:
                sys.path.insert(0, os.getcwd())  # as python -m does; an installed command has its own folder there
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                    raise  # what it imports itself
                raise SystemExit(
                    f"--import: {module} must be a module that Python finds; give FILE.py, or set PYTHONPATH"
                ) from None
            continue
        if not path.is_file():
            raise SystemExit(f"--import: {module} must be a file, but there is none; give its path")
        loaded = sys.modules.get(path.stem)
        if getattr(loaded, "__file__", None) == str(path.resolve()):
            continue
        if loaded is not None:  # taking its place would break whoever imports it
            raise SystemExit(f"--import: {module} must not be named like a module that is loaded; rename the file")
        spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        sys.modules[path.stem] = importlib.util.module_from_spec(spec)  # as an import would, for dataclasses and pickle
        spec.loader.exec_module(sys.modules[path.stem])
