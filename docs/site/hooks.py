"""What MkDocs calls: generated pages, links, the index for language models. `mkdocs build --strict` reads this file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from method_pages import method_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from paper_page import paper_page
from parts import first_sentence, inside_docs, rebased
from reference_pages import reference_pages

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
_PAGES: dict[str, str] = {}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Writes the generated pages, in memory, and puts them where the navigation has ``@methods`` and ``@reference``.

    ``@rest`` stands for the pages of docs/ that the navigation does not name.
    """
    methods = method_pages(DOCS)
    reference = reference_pages(ROOT)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _PAGES.clear()
    _PAGES["index.md"] = rebased(readme, "../README.md", "").replace("](../docs/", "](")
    _PAGES["papers.md"] = paper_page(DOCS)
    _PAGES.update({f"methods/{name}.md": page for name, page in methods.items()})
    _PAGES.update({f"reference/{name}.md": page for name, page in reference.items()})
    entries: dict[str, list[Any]] = {
        "@methods": [{name: f"methods/{name}.md"} for name in methods],
        "@reference": [{name: f"reference/{name}.md"} for name in reference],
    }
    known = {*re.findall(r"[\w/]+\.md", str(config.nav)), *_PAGES}
    entries["@rest"] = sorted(path for path in _written() if path not in known)
    config.nav = [_filled(entry, entries) for entry in config.nav or []]
    return config


def _written() -> list[str]:
    return [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")]


def _filled(entry: Any, entries: dict[str, list[Any]]) -> Any:
    if isinstance(entry, dict):
        return {title: _filled(below, entries) for title, below in entry.items()}
    if isinstance(entry, list):
        return [new for below in entry for new in (entries[below] if _is_key(below) else [_filled(below, entries)])]
    return entries.get(entry, entry)


def _is_key(entry: Any) -> bool:
    return isinstance(entry, str) and entry.startswith("@")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for path, text in _PAGES.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave docs/ become plain words."""
    return inside_docs(markdown, page.file.src_uri)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remembers the order of pages for ``llms.txt``."""
    config.extra["order"] = [page.file.src_uri for page in nav.pages]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Writes ``llms.txt``: every page with one line, for readers that are language models."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    for path in config.extra["order"]:
        text = _PAGES.get(path) or (DOCS / path).read_text(encoding="utf-8")
        title = re.search(r"^# (.+)$", text, re.M)
        about = f"Public names of {Path(path).stem}" if path.startswith("reference/") else first_sentence(text)
        lines.append(f"- [{title[1].strip('`') if title else path}]({path.removesuffix('.md')}.html): {about}")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
