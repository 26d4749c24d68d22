"""The checkout as people and tools meet it: copied whole, without turning in circles."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("credit", "envs", "rollout", "trainers")


def test_the_folder_of_type_checkers_can_be_copied_with_its_links_followed(tmp_path):
    """A copy follows links to folders; one that leads to the checkout itself would never end."""
    shutil.copytree(ROOT / ".typing", tmp_path / "copy")
    found = sorted(path.relative_to(tmp_path / "copy").parts for path in (tmp_path / "copy").rglob("py.typed"))
    assert [parts[:2] for parts in found] == [("turncredit", name) for name in sorted({*PACKAGES, "py.typed"})]


def test_no_link_of_the_checkout_leads_to_a_folder_it_lies_in():
    skipped = {".git", "outputs", "build", "dist"}
    links = [
        path
        for top in ROOT.iterdir()
        if top.name not in skipped and not top.name.startswith(".venv")
        for path in (top.rglob("*") if top.is_dir() and not top.is_symlink() else [top])
        if path.is_symlink()
    ]
    assert {link.name for link in links} >= set(PACKAGES)
    for link in links:
        assert link.resolve() not in link.absolute().parents, link


def checked_in(*patterns: str) -> list[Path]:
    """Files under version control, by name."""
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_nothing_changes_the_path_of_imports():
    """Scripts import the library and what lies beside them; only the mutations' child looks into its copy first, and
    ``--import`` into the working directory, as ``python -m`` does."""
    changing = re.compile(r"sys\.path(\.insert|\.append|\[:0\]| *\+?=)")
    found = {str(path.relative_to(ROOT)) for path in checked_in("*.py", "*.ipynb") if changing.search(path.read_text())}
    assert found - {"tests/test_repository.py"} == {
        "benchmarks/mutations.py",
        "trainers/launch/imports.py",
    }


def test_examples_stay_examples():
    lines = sum(len(path.read_text().splitlines()) for path in checked_in("examples/*.py", "examples/*.md"))
    assert lines < 2450  # of which 1,250 are the five comparisons and the Monte-Carlo ceiling, 170 the script for TRL


def test_prompts_and_players_of_the_embedded_policies_need_neither_torch_nor_an_engine():
    names = [
        f"turncredit.envs.{env}.{part}"
        for env in ("alfworld", "webshop", "search_qa")
        for part in ("compact", "player")
    ]
    code = f"import sys, {', '.join(names)}; print({{'torch', 'transformers', 'textworld'}} & set(sys.modules))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "set()"
