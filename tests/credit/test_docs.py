"""The documents' code runs, and the table of methods names every method with its true defaults."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest
import torch
from helpers.credit_cases import random_batch

from turncredit import credit as package
from turncredit.credit import get_credit, grpo, list_credits, registry, signals
from turncredit.credit.inputs import OBLIGATORY

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)


def test_the_example_of_a_method_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    code = blocks("adding_a_method.md")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    exec(compile(code, "adding_a_method.md", "exec"), {"__name__": "adding_a_method"})
    assert capsys.readouterr().out == "{'turns': 2, 'boost': 1.5} ['teacher_logprobs']\n"
    inputs = random_batch(0)
    credit = get_credit("last_turn")(inputs, step=3)
    assert 0 < credit.metrics["boosted_share"] < 1
    assert (credit.advantages[~inputs.response_mask] == 0).all()
    assert get_credit("last_turn")(inputs, step=100).advantages.equal(grpo(inputs).advantages)


def test_the_example_of_a_signal_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.setattr(signals, "_SIGNALS", dict(signals._SIGNALS))
    scope = {"__name__": "adding_a_method"}
    exec(compile(blocks("adding_a_method.md")[1], "adding_a_method.md", "exec"), scope)
    inputs = random_batch(0)
    torch.testing.assert_close(scope["credit_of"](inputs).advantages, 0.75 * grpo(inputs).advantages)  # type: ignore[operator]
    with pytest.raises(ValueError, match=r"inputs\.doubts must be given, got None; ask the policy how sure it was"):
        get_credit("sure_turns")(inputs)


def test_the_table_of_signals_names_every_optional_one() -> None:
    named = set(re.findall(r"^\| `(\w+)` \| (?:MT|M|N|an object)", (DOCS / "adding_a_method.md").read_text(), re.M))
    assert named == set(signals.list_signals()) - set(OBLIGATORY)


def test_every_method_has_a_row_with_its_defaults() -> None:
    text = (DOCS / "methods.md").read_text()
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", text, re.M)}
    assert {name for name in list_credits() if not name.startswith("align_opsd")} <= set(rows)
    for name in list_credits():
        for option, value in re.findall(r"`(\w+)` (None|True|False|\"[^\"]*\"|[\d.e-]+)", rows.get(name, "")):
            assert get_credit(name).options[option] == eval(value), (name, option)


def test_doctests() -> None:
    names = [found.name for found in pkgutil.walk_packages(package.__path__, "turncredit.credit.") if not found.ispkg]
    results = {name: doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch}) for name in names}
    assert {name for name, result in results.items() if result.failed} == set()
    assert sum(result.attempted for result in results.values()) >= 6
