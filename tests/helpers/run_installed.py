"""Run by the Python of an install, from anywhere: every public name, a method of each kind, the README's ten lines.

python tests/helpers/run_installed.py    prints where the library lies, its version and how many names were found
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import sys
from pathlib import Path


def main() -> None:
    """Import everything, run the ten lines, print what was found as JSON."""
    from public_names import public_names, ten_lines  # beside this script

    lacking = []
    names = public_names()
    for package, listed in names.items():
        module = importlib.import_module(package)
        lacking += [f"{package}.{name}" for name in listed if not hasattr(module, name)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(ten_lines(), "README.md", "exec"), {"__name__": "readme"})
    turncredit = importlib.import_module("turncredit")
    from turncredit.trainers import list_methods

    found = {
        "python": sys.version.split()[0],
        "folders": [str(Path(folder).resolve()) for folder in turncredit.__path__],
        "versions": [turncredit.__version__, importlib.metadata.version("turncredit")],
        "names": sum(map(len, names.values())),
        "lacking": lacking,
        "methods": len(list_methods()),
        "readme": said.getvalue(),
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
