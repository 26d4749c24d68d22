"""Installs of the library in virtual environments of their own, for tests of what a user and an editor get."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from helpers.public_names import PACKAGES, ROOT

SHIPPED = (".typing", *PACKAGES, "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "tests")


def copy_of_checkout(target: Path) -> Path:
    """What an install reads, links kept; ``credit/marker.py`` tells this copy from another install."""
    target.mkdir(parents=True)
    for name in SHIPPED:
        ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, target)
    (target / "credit" / "marker.py").write_text('MARK: str = "here"\n', encoding="utf-8")
    return target


def environment(folder: Path) -> Path:
    """Python of a fresh environment that sees the packages of this one, but not its install of turncredit."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    sites = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    # a folder named in a .pth file does not have its own .pth files read, so an editable install there stays unseen
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(sites) / "others.pth").write_text("\n".join(sorted(others)) + "\n", encoding="utf-8")
    return python


def call(*command: object, cwd: Path, python: Path | None = None) -> str:
    """What a command prints, without this process's paths of imports; an AssertionError with its words if it fails."""
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    if python is not None:
        kept |= {"VIRTUAL_ENV": str(python.parents[1]), "PATH": f"{python.parent}{os.pathsep}{kept['PATH']}"}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def pip(python: Path, *arguments: object, cwd: Path) -> str:
    """This environment's pip at work in another one, without a download."""
    offline = ("--no-deps", "--no-build-isolation", "--no-index") if arguments[0] == "install" else ()
    return call(sys.executable, "-m", "pip", "--python", python, *arguments, *offline, "-q", cwd=cwd)
