"""What packaging takes from the checkout, and that a checkout on the path of imports comes before an install."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

from helpers.public_names import LINKS, PACKAGES, ROOT, public_names


def test_every_folder_of_code_is_a_package():
    """Setuptools leaves a folder without ``__init__.py`` out, and nothing in a checkout notices."""
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_each_package_is_linked_once():
    links = {path.name: path.resolve() for path in (LINKS / "turncredit").iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in PACKAGES}


def test_type_checkers_are_told_the_lazy_names():
    package = importlib.import_module("turncredit.rollout")
    tree = ast.parse((ROOT / "rollout" / "__init__.py").read_text(encoding="utf-8"))
    told = next(part for part in tree.body if isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
    found = {
        alias.name: statement.module
        for statement in told.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert found == package._LAZY
    assert set(found) < set(package.__all__)


def test_every_public_name_exists():
    names = [(package, name) for package, listed in public_names().items() for name in listed]
    assert len(names) > 250
    missing = [pair for pair in names[1:] if not hasattr(importlib.import_module(pair[0]), pair[1])]
    assert missing == []


def imported(code: str, *paths: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_the_version_stands_in_one_place():
    version = imported("import turncredit; print(turncredit.__version__)", LINKS)
    asked = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert asked.stdout.split()[-1] == version
    assert version not in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_a_checkout_that_stands_earlier_comes_first(tmp_path):
    """A folder that holds a link to a checkout, or parts of one, as the mutations make it, needs no ``__init__.py``."""
    (tmp_path / "turncredit" / "envs").mkdir(parents=True)
    (tmp_path / "turncredit" / "envs" / "__init__.py").write_text("mine = True\n")
    code = "import turncredit.envs as envs, turncredit as t; print(envs.mine, t.__version__ > '', len(t.__path__) > 1)"
    assert imported(code, tmp_path, LINKS) == "True True True"
    code = "import turncredit.rollout as r, turncredit.envs as envs; print(hasattr(r, 'Turn'), hasattr(envs, 'mine'))"
    assert imported(code, LINKS, tmp_path) == "True False"
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "turncredit").symlink_to(ROOT)
    code = "import turncredit.envs; print(turncredit.envs.__file__)"
    assert imported(code, tmp_path / "link") == str(tmp_path / "link" / "turncredit" / "envs" / "__init__.py")
