"""The site: every registered method has a page that agrees with the code, and every page's Python runs somewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.credit_cases import random_batch
from helpers.public_names import public_names
from helpers.recorder import NAMES
from helpers.tiny import tiny_model, tiny_tokenizer
from helpers.toy import ToySuite

from turncredit import trainers
from turncredit.credit import get_credit
from turncredit.trainers import get_method

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site() -> Iterator[SimpleNamespace]:
    """The modules of docs/site, as MkDocs finds them: beside its hook."""
    names = ("parts", "curves", "method_pages", "paper_page", "reference_pages")
    loaded = {}
    for name in names:
        spec = importlib.util.spec_from_file_location(name, DOCS / "site" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded[name])
    yield SimpleNamespace(**loaded)
    for name in names:
        del sys.modules[name]


@pytest.fixture(scope="module")
def pages(site: SimpleNamespace) -> dict[str, str]:
    return site.method_pages.method_pages(DOCS)


def test_every_method_has_a_page_with_the_code_s_options(site: SimpleNamespace, pages: dict[str, str]) -> None:
    assert sorted(pages) == sorted(NAMES.split())
    for name, page in pages.items():
        shown = {
            cells[0].strip("`"): cells[1:]
            for cells in site.parts.rows(site.parts.section(page, "options").body)
            if cells[0] != "option"
        }
        method = get_method(name)
        options = {**getattr(method.credit, "options", {}), **method.options}
        assert {key: cells[0] for key, cells in shown.items()} == {k: f"`{v!r}`" for k, v in options.items()}, name
        assert [key for key, cells in shown.items() if not cells[1]] == [], name
        assert "### " in site.parts.section(page, "equations").body, name


def test_pages_hold_equations_fidelity_and_curves_where_there_are_any(pages: dict[str, str]) -> None:
    assert "(10) A~[k,t] = A_i ((1 - lam) + lam w_k)" in pages["agent_opsd"]
    assert "| agent_opsd | 0.86 " in pages["agent_opsd"]
    assert pages["agent_opsd"].count("<svg") == 3
    assert "| grpo, mt_grpo |" in pages["mt_grpo"]
    assert "## Fidelity" not in pages["lens_opd"]
    assert "(37) SDAR:" in pages["sdar"]
    assert "](../equations.md#" in pages["posterior"]


def test_papers_lead_to_the_names_that_train_them(site: SimpleNamespace) -> None:
    page = site.paper_page.paper_page(DOCS)
    lines = [line for line in page.splitlines() if line.startswith("| [")]
    assert any("2608.05987" in line and "`agent_opsd_gap`" in line and '`revision` "gap"' in line for line in lines)
    assert any("2507.18071" in line and '`importance_sampling_level="turn"`' in line for line in lines)
    rows = site.method_pages.facts((DOCS / "methods.md").read_text(encoding="utf-8")).values()
    numbers = set(re.findall(r"\d{4}\.\d{5}", " ".join(source for _, source, *_ in rows)))
    assert len(numbers) > 25
    assert numbers <= set(re.findall(r"\d{4}\.\d{5}", page))
    assert "](methods/" in page
    assert not any("2608.05987](" in line and "](methods/grpo.md)" in line for line in lines)


def test_sections_tables_and_links_are_read_as_markdown_means_them(site: SimpleNamespace) -> None:
    page = "# T\n\n```bash\n# no heading\n```\n\n## The run's end\n\nx\n\n### Deep\n\ny\n\n## Next\n"
    assert [found.slug for found in site.parts.sections(page)] == ["t", "the-runs-end", "deep", "next"]
    assert site.parts.section(page, "the-runs-end").body == "x\n\n### Deep\n\ny"
    with pytest.raises(ValueError, match="slug must be that of a heading, got 'gone'"):
        site.parts.section(page, "gone")
    assert list(site.parts.rows("| `a | b` | c |\n|---|---|\n")) == [["`a | b`", "c"]]
    moved = site.parts.rebased("[a](#x) [b](lab.md) [c](https://d.e/f) ![p](lab/q.png)", "equations.md", "methods")
    assert moved == "[a](../equations.md#x) [b](../lab.md) [c](https://d.e/f) ![p](../lab/q.png)"
    assert site.parts.inside_docs("[a](../examples/b.py), [c](d.md)", "trainers.md") == "a, [c](d.md)"
    assert site.parts.inside_docs("[a](../README.md#b)", "faq.md") == "[a](index.md#b)"
    assert site.parts.inside_docs("[a](../fidelity.md)", "lab/tabular.md") == "[a](../fidelity.md)"
    assert site.parts.first_sentence("# T\n\n![p](q)\n\nOne **[two](x)**. Three.") == "One two."


def test_docstrings_are_shown_as_markdown() -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "site" / "docstrings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    shown = module.as_markdown("As :func:`~a.b` says.\n\n    >>> f(1)\n    2\n\nEnd.")
    assert shown == "As `a.b` says.\n\n    ```pycon\n    >>> f(1)\n    2\n    ```\n\nEnd."


def test_the_gallery_names_every_example() -> None:
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+\.py)`", page, re.M)) == {path.name for path in (ROOT / "examples").glob("*.py")}


# ---- code of the pages; those that are not in GIVEN have a test of their own

LEFT_OUT = {  # blocks that are read only, by a piece of their code, and why
    'generate_games("games", 600': "plays 660 generated games through; tests/envs/test_alfworld_generator.py makes 18",
    'ShopConfig(data="webshop_data")': "needs WebShop's official files; tests/envs/test_webshop.py writes small ones",
}


def blocks(page: str) -> list[str]:
    path = ROOT / page if page == "README.md" else DOCS / page
    found = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)
    return [block for block in found if not any(piece in block for piece in LEFT_OUT)]


class Suite(ToySuite):
    """A toy with the contexts that a page names."""

    def contexts(self, task: Any) -> dict[str, str]:
        return {"skills": "Say the colour twice.", "hint": f"It is {task.id.split('-')[0]}."}


def play() -> dict[str, Any]:
    from turncredit.rollout import RolloutCollector, SamplingConfig

    suite, tokenizer = Suite(num_tasks=16), tiny_tokenizer()
    model, sampling = tiny_model(), SamplingConfig(max_completion_length=4)
    collector = RolloutCollector(model, tokenizer, suite, sampling, num_workers=0)
    task = suite.tasks("train")[0]
    (trajectory,) = collector.collect([task])
    names = {"suite": suite, "tokenizer": tokenizer, "model": model, "collector": collector, "task": task}
    return {**names, "trajectory": trajectory, "turn": trajectory.turns[0], "hint": "red", "seed": 0, "step": 0}


def alignments() -> dict[str, Any]:
    inputs = random_batch(0)
    turns, tokens = inputs.response_mask.shape
    vectors = torch.nn.functional.normalize(torch.randn(turns, 8, generator=torch.Generator().manual_seed(0)), dim=1)
    names = {f"{who}_{what}": vectors for who in ("teacher", "student") for what in ("embeddings", "actions")}
    names |= {name: getattr(inputs, name) for name in ("trajectory_ids", "turn_ids", "group_ids")}
    names |= dict.fromkeys(("source_valid", "target_valid"), torch.ones(turns, dtype=torch.bool))
    scores = lambda source, target: torch.full((len(source), tokens), -1.0)  # noqa: E731
    return {**names, "inputs": inputs, "score": scores, "gather": lambda own: [own, own[:0]]}


def questions() -> dict[str, Any]:
    import pyarrow
    import pyarrow.parquet

    from turncredit.envs.search_qa import load_questions

    rows = [
        {"id": f"{source}-{number}", "question": f"who {number}?", "golden_answers": ["a"], "data_source": source}
        for source in ("nq", "hotpotqa")
        for number in range(3)
    ]
    for split in ("train", "test"):
        named = [{**row, "id": f"{split}-{row['id']}", "question": f"{split}: {row['question']}"} for row in rows]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(named), f"{split}.parquet")
    passage = {"id": "0", "contents": '"A door"\nIt is red.'}
    Path("corpus.jsonl").write_text(json.dumps(passage) + "\n", encoding="utf-8")
    return {"questions": {"train": load_questions("train.parquet"), "eval": load_questions("test.parquet")}}


GIVEN: dict[str, Callable[[], dict[str, Any]]] = {  # what a page says is the reader's
    "README.md": dict,
    "quickstart.md": dict,
    "align_opsd.md": alignments,
    "environments.md": play,
    "preflight.md": play,
    "search_qa.md": questions,
    "templates.md": lambda: {"GRPOConfig": trainers.GRPOConfig},
    "trl.md": play,
    "webshop.md": dict,
}


@pytest.mark.parametrize("page", sorted(GIVEN))
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turncredit.trainers.methods import registry

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_METHODS", dict(registry._METHODS))
    Path("examples").symlink_to(ROOT / "examples")
    names = {"__name__": "page", **GIVEN[page]()}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {number}", "exec", dont_inherit=True), names)
    for closing in ("collector", "trainer"):
        if closing in names:
            names[closing].close()


def test_every_page_with_python_is_run_here_or_by_a_test_of_its_own() -> None:
    found = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "```python" in path.read_text("utf-8")}
    assert set(GIVEN) - {"README.md"} <= found
    others = [path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__)]
    texts = [
        text for path in others if re.search(r"\b(exec|run_path|main)\(", text := path.read_text(encoding="utf-8"))
    ]
    assert [page for page in found - set(GIVEN) if not any(f'"{page}"' in text for text in texts)] == []
    everything = "".join(path.read_text(encoding="utf-8") for path in DOCS.glob("*.md"))
    assert all(everything.count(piece) == 1 for piece in LEFT_OUT)


def test_the_blocks_of_a_method_s_page_name_it(pages: dict[str, str]) -> None:
    for name, page in pages.items():
        config, *credit = re.findall(r"```python\n(.*?)```", page, re.S)
        made = eval(config.partition("#")[0], {"GRPOConfig": trainers.GRPOConfig})
        assert made.credit == name
        if credit:
            assert callable(eval(credit[0].partition("(inputs)")[0], {"get_credit": get_credit}))


# ---- the built site


class Links(HTMLParser):
    """What a page loads, and where its links lead."""

    def __init__(self, page: Path):
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(found["src"] or "")
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "icon"):
            self.loads.append(found["href"] or "")
        if tag == "a" and found.get("href"):
            self.leads.append(found["href"] or "")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="needs the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    built = {page.relative_to(tmp_path): Links(page) for page in tmp_path.rglob("*.html")}
    assert len(built) > 120
    for name, links in built.items():
        assert [load for load in links.loads if "//" in load] == [], name
        for target in [*links.loads, *links.leads]:
            path = target.partition("#")[0].partition("?")[0]
            if path and ":" not in path and name.name != "404.html":
                assert (tmp_path / name.parent / path).exists(), (name, target)
    assert "learning_curve.png" in built[Path("index.html")].loads
    assert "which_method.html" in built[Path("index.html")].leads
    assert not (tmp_path / "site").exists()
    for package, public in public_names().items():
        page = tmp_path / "reference" / f"{package}.html"
        shown = page.read_text(encoding="utf-8") if package != "turncredit" else ""
        ids = set(re.findall(r'id="turncredit\.([\w.]+)"', shown))
        ends = {".".join(found.split(".")[-2:]) for found in ids} | {found.split(".")[-1] for found in ids}
        assert [name for name in public if shown and name not in ends] == [], package
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any(entry["location"].startswith("reference/turncredit.rollout.html#") for entry in index["docs"])
    lines = (tmp_path / "llms.txt").read_text(encoding="utf-8").splitlines()
    entries = [re.fullmatch(r"- \[(.+)\]\((.+)\): (.+)", line) for line in lines if line.startswith("- ")]
    assert len(entries) > 120
    assert all(entry and (tmp_path / entry[2]).is_file() for entry in entries)
