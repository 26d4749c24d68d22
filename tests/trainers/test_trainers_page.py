"""docs/trainers.md: its code runs, and it lists what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from turncredit.trainers.adapters import refusals

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "trainers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(<!-- trl -->\n)?```python\n(.*?)```", PAGE, re.S)


def test_the_blocks_that_need_no_trl_run() -> None:
    """The one of TRL runs in test_trl_adapter.py."""
    assert [bool(mark) for mark, _ in BLOCKS] == [False, True, False]
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[0][1], "trainers.md", "exec"), names)
    mask = names["response_mask"]
    assert ((names["advantages"] != 0) == mask).all()
    assert ((names["weights"] != 0) == mask).all()
    exec(compile(BLOCKS[2][1], "trainers.md", "exec"), names)
    found = names["data"].batch
    assert ((found["advantages"] != 0) == mask).all()
    assert found["returns"].equal(found["advantages"])
    assert not torch.equal(found["advantages"], names["advantages"])


def test_every_refused_option_is_on_the_page() -> None:
    listed = PAGE.partition("### What is refused")[2].partition("## verl")[0]
    for name, (values, _) in refusals._ALLOWED.items():
        assert f"`{name}" in listed, name
        if len(values) > 1:
            assert all(f'`"{value}"`' in listed for value in values)
    assert f"TRL other than {refusals.VERSION}" in listed
    assert "`scale_rewards" in listed
