"""Parts of the pages in docs/, read as text: sections, tables, links."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

LINK = re.compile(r"(\]\()([^)\s]+)(\))")


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it.

    Args:
        level: 1 for a page's title.
        title: the heading's text.
        body: the text up to the next heading of this or a higher level.
    """

    level: int
    title: str
    body: str

    @property
    def slug(self) -> str:
        """The anchor that Markdown gives the heading."""
        return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", self.title).strip().lower())


def sections(text: str) -> Iterator[Section]:
    """Every section of a page, in its order; lines of code that begin with # are no headings."""
    lines, fenced, heads = text.splitlines(), False, []
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        found = None if fenced else re.match(r"(#+) (.+)", line)
        if found:
            heads.append((number, len(found[1]), found[2]))
    for place, (number, level, title) in enumerate(heads):
        end = next((other for other, depth, _ in heads[place + 1 :] if depth <= level), len(lines))
        yield Section(level, title, "\n".join(lines[number + 1 : end]).strip())


def section(text: str, slug: str) -> Section:
    """The section with that anchor.

    Raises:
        ValueError: there is none, so a page was rewritten and what reads it was not.
    """
    for found in sections(text):
        if found.slug == slug:
            return found
    raise ValueError(f"section: slug must be that of a heading, got {slug!r}; look for its new name in the page")


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row, rulers left out; a | within backticks divides nothing."""
    for line in text.splitlines():
        if line.startswith("|") and not re.fullmatch(r"[|\s:-]+", line):
            cells = re.split(r"\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", line.strip().strip("|"))
            yield [cell.strip() for cell in cells]


def table(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def rebased(text: str, page: str, folder: str) -> str:
    """The text of a page as it must stand in another folder of docs/: relative links and anchors lead where they did.

    Args:
        text: Markdown from ``page``.
        page: the path of the page within docs/, such as ``"equations.md"``.
        folder: the folder of the new page within docs/, ``""`` for docs/ itself.
    """

    def moved(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target:
            return match[0]
        path, _, anchor = target.partition("#")
        inside = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
        there = posixpath.relpath(inside, folder or ".")
        return f"{match[1]}{there}{'#' + anchor if anchor else ''}{match[3]}"

    return LINK.sub(moved, text)


def inside_docs(text: str, page: str) -> str:
    """The text as the site needs it: README.md is its first page, other links that leave docs/ become plain words."""
    depth = page.count("/")
    text = text.replace("](" + "../" * (depth + 1) + "README.md", "](" + "../" * depth + "index.md")

    def plain(match: re.Match[str]) -> str:
        if match[2].startswith("../" * (depth + 1)):
            return match[1]
        return match[0]

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", plain, text)


def first_sentence(text: str) -> str:
    """What a page is about: the first sentence of its first paragraph, without Markdown."""
    body = re.sub(r"^(#.*|---.*?---|<!--.*?-->)$", "", text, flags=re.M)
    kinds = ("|", "!", "```", "    ", "<", "- ")
    found = (part for part in re.split(r"\n\s*\n", body) if part.strip() and not part.lstrip("\n").startswith(kinds))
    words = " ".join(next(found, "").split())
    words = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", words).replace("**", "").replace("`", "")
    return re.split(r"(?<=[.:?])\s", words)[0].rstrip(":")
