"""One page a method: what it is, its options as the code has them, its equations, what was measured."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from curves import curves, learning_runs
from parts import rebased, rows, section, sections, table

from turncredit.credit import group_relative_advantages, list_credits
from turncredit.credit.groups import faded
from turncredit.trainers import Method, Teacher, get_method, list_methods
from turncredit.trainers.methods import registry

LOSSES = {  # the section of equations.md with a method's loss, where no heading has its name
    "auxiliary-losses": ("sdar", "opsd", "grpo_opsd", "skill_sd", "align_distill"),
    "on-policy-distillation": ("opd", "tcod_f2b", "tcod_b2f", "lens_opd", "futurebridge"),
    "alignopsd": ("align_distill",),
}
HEAD = ["teacher reads", "extra cost of an update", "against GRPO, measured here"]


def method_pages(docs: Path) -> dict[str, str]:
    """The Markdown of every registered method's page, by the method's name."""
    texts = {name: (docs / f"{name}.md").read_text(encoding="utf-8") for name in ("methods", "equations")}
    texts |= {name: (docs / f"{name}.md").read_text(encoding="utf-8") for name in ("fidelity_tables", "lab")}
    runs, methods = learning_runs(docs), facts(texts["methods"])
    return {name: "\n\n".join(filter(None, _page(name, methods[name], texts, runs))) + "\n" for name in methods}


def facts(methods: str) -> dict[str, list[str]]:
    """The row of docs/methods.md of every name that trains, the library's own only.

    Args:
        methods: the text of docs/methods.md.
    """
    found = {cells[0].strip("`"): cells[1:] for cells in rows(section(methods, "every-name-that-trains").body)}
    return {name: found[name] for name in list_methods() if name in found}


def _page(name: str, row: list[str], texts: Mapping[str, str], runs: Any) -> Iterator[str]:
    what, source, teacher, cost, defaults, measured = (rebased(cell, "methods.md", "methods") for cell in row)
    yield f"# `{name}`"
    yield f"{what[0].upper()}{what[1:]}. Source: {source}."
    yield f'```python\nGRPOConfig(credit="{name}")  # options: credit_options={{..}}\n```'
    if name in list_credits():
        yield f'```python\nget_credit("{name}")(inputs)  # inputs: CreditInputs\n```'
    yield table(HEAD, [[teacher, cost, measured]])
    yield f"What sets it apart: {defaults}. It reads, beyond what every method reads: {_signals(name)}."
    yield "## Options"
    yield "Every option with its default, read from the code."
    yield options_table(name)
    yield "## Equations"
    yield "Symbols: [shared definitions](../equations.md#shared-definitions)."
    for slug in equations_of(name, row, texts["equations"]):
        found = section(texts["equations"], slug)
        yield f"### {found.title}\n\n{rebased(found.body.replace('### ', '#### '), 'equations.md', 'methods')}"
    yield from _measured(name, texts, runs)


def _signals(name: str) -> str:
    method = get_method(name)
    named = sorted(f"`{need}`" for need in method.needs - set(registry.FACTS))
    return ", ".join(named) or "nothing"


def options_of(name: str) -> dict[str, Any]:
    """Every option that the method takes in `credit_options`, with its default."""
    method = get_method(name)
    of_credit = {} if method.credit is None or isinstance(method.credit, str) else method.credit.options
    return {**of_credit, **method.options}


def options_table(name: str) -> str:
    """The options of a method as a table: name, default, meaning."""
    meanings = _meanings(name)
    body = [[f"`{key}`", f"`{value!r}`", meanings.get(key, "")] for key, value in options_of(name).items()]
    return table(["option", "default", "meaning"], body)


def _meanings(name: str) -> dict[str, str]:
    """What the docstrings say about the options of a method; the most special one wins."""
    method = get_method(name)
    universal = {**_arguments_of(Method), **_arguments_of(Teacher)}
    shared = {**_arguments_of(group_relative_advantages), **_arguments_of(faded)}
    found = {**shared, **{key: universal[registry._TEACHER.get(key, key)] for key in registry.EVERY_METHOD}}
    sources: list[Callable[..., Any]] = [provider.function for provider in method.providers]
    if method.credit is not None and not isinstance(method.credit, str):
        sources.append(inspect.unwrap(method.credit.function))
    related = sorted((other for other in registry._METHODS if name.startswith(other)), key=len)
    sources += [registry._METHODS[other].factory for other in related]
    for source in sources:
        found |= {
            key: shared.get(key, text) if "as in" in text else text for key, text in _arguments_of(source).items()
        }
    return found


def _arguments_of(described: Callable[..., Any]) -> dict[str, str]:
    return arguments(inspect.getdoc(described) or "")


def arguments(docstring: str) -> dict[str, str]:
    """The meaning of every argument that the section Args of a docstring names."""
    inside = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)*)", docstring, re.M)
    entries = re.findall(r"^    (\S[^:\n]*): (.*(?:\n {5,}.*)*)", inside[1] if inside else "", re.M)
    return {
        name.strip(): re.sub(r":\w+:`~?([^`]*)`", r"`\1`", " ".join(text.split())).replace("|", "\\|")
        for names, text in entries
        for name in names.split(",")
    }


def equations_of(name: str, row: list[str], equations: str) -> list[str]:
    """Anchors of docs/equations.md that a method's page shows: of its name, its row's links, its losses."""
    key = name.replace("_", "")
    heads = {found.slug: re.sub(r"[\W_]", "", found.title).lower() for found in sections(equations)}
    named = [slug for slug, title in heads.items() if title in key]
    named.sort(key=lambda slug: (not key.startswith(heads[slug]), -len(heads[slug])))
    linked = re.findall(r"\]\(equations\.md#([\w-]+)\)", " ".join(row))
    base = max((word for words in LOSSES.values() for word in words if name.startswith(word)), key=len, default="")
    losses = [slug for slug, words in LOSSES.items() if base in words]
    return list(dict.fromkeys([*named[:1], *linked, *losses]))


def _measured(name: str, texts: Mapping[str, str], runs: Any) -> Iterator[str]:
    pairs = section(texts["fidelity_tables"], "pair_accuracy-by-teacher-mean-over-processes").body
    head, *body = rows(pairs)
    ours = [cells for cells in body if {name, "grpo"} & set(cells[0].split(", "))]
    if any(name in cells[0].split(", ") for cells in ours):
        yield "## Fidelity"
        yield (
            "Share of pairs of turns in the right order, by teacher, mean over the processes with exact observations, "
            "95% intervals over five seeds; `*` better, `!` worse than GRPO ([fidelity](../fidelity.md))."
        )
        yield table(head, ours)
    picture = curves(runs, name)
    if picture:
        yield "## Learning"
        yield (
            "Success while training the embedded agents, mean over seeds, beside GRPO's; intervals and held-out "
            "success are in [the laboratory](../lab.md)."
        )
        yield picture
