"""The index of papers: which name and which options give what a paper describes."""

from __future__ import annotations

import re
from pathlib import Path

from method_pages import facts
from parts import rebased, rows, table

ARXIV = re.compile(r"\b(\d{4}\.\d{5})\b")
TITLE = """# Papers

Which name trains what a paper describes, by arXiv number. The names' own defaults are the paper's where the paper
states them; the last column says what sets a name apart from the other names of its paper. Where the text of a paper
left a choice, or its released code does something else: [departures](equations.md#departures) and
[methods](methods.md#where-this-departs-from-released-code-or-says-more-than-the-text).

"""
LOSSES = """

## Papers of the policy's loss

These are options of `GRPOConfig` and go with every method ([objective](objective.md#the-policys-loss)).

"""


def paper_page(docs: Path) -> str:
    """The page, from the tables of docs/methods.md and docs/objective.md."""
    methods = facts((docs / "methods.md").read_text(encoding="utf-8"))
    cited = [pair for row in methods.values() for pair in re.findall(r"([\w.+-]+)[^;]*? (\d{4}\.\d{5})", row[1])]
    numbers = dict(reversed(cited))  # of a paper's short name, for rows that give the name only
    body = []
    for name, (_, source, _, _, defaults, _) in methods.items():
        known = numbers.get(source.split(",")[0])
        for number in ARXIV.findall(source.split(";")[0]) or filter(None, [known]):
            cell = rebased(defaults, "methods.md", "")
            body.append([_link(number), source, f"[`{name}`](methods/{name}.md)", cell])
    body.sort(key=lambda cells: cells[0])
    head = ["arXiv", "as the table of methods cites it", "`GRPOConfig(credit=..)`", "its options"]
    return TITLE + table(head, body) + LOSSES + _losses((docs / "objective.md").read_text(encoding="utf-8")) + "\n"


def _losses(objective: str) -> str:
    column, body = "", []
    for cells in rows(objective):
        if not cells[0].startswith('`"'):
            column = cells[0].strip("`")
        for number in ARXIV.findall(" ".join(cells)):
            body.append([_link(number), f"`{column}={cells[0].split('`')[1]}`", rebased(cells[1], "objective.md", "")])
    return table(["arXiv", "option", "what it does"], body)


def _link(number: str) -> str:
    return f"[{number}](https://arxiv.org/abs/{number})"
