"""Every page can be found from the index, and no link leads nowhere."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
TO_HEADING = re.compile(r"\]\(([^)#]*)#([^)]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^#+ (.+)$", re.M)


def _pages(repository: Path) -> list[Path]:
    folders = (repository.glob("*.md"), (repository / "deploy").glob("*.md"), (repository / "docs").rglob("*.md"))
    return [page for folder in folders for page in sorted(folder)]


def _links(page: Path) -> list[Path]:
    """The files that a page links to; addresses of the web are left out."""
    targets = LINK.findall(page.read_text())
    return [(page.parent / target).resolve() for target in targets if "://" not in target]


def _anchors(page: Path) -> set[str]:
    """The names that readers of Markdown give to the headings of *page*."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(FENCE.sub("", page.read_text())))
    return {words.replace(" ", "-") for words in plain}


def test_every_link_leads_to_a_file(repository: Path) -> None:
    """A link inside the repository names something that exists."""
    broken = [(page.name, target) for page in _pages(repository) for target in _links(page) if not target.exists()]
    assert broken == []


def test_every_link_to_a_heading_finds_it(repository: Path) -> None:
    """The part behind the # is a heading of that page, or of the same."""
    broken = []
    for page in _pages(repository):
        for target, anchor in TO_HEADING.findall(page.read_text()):
            other = (page.parent / target).resolve() if target else page
            if "://" not in target and other.suffix == ".md" and anchor not in _anchors(other):
                broken.append((page.name, target, anchor))
    assert broken == []


def test_every_page_is_reached_from_the_index(repository: Path) -> None:
    """docs/README.md, and the indexes of decisions and runbooks, name every page below them."""
    docs = repository / "docs"
    indexes = [docs / "README.md", docs / "decisions" / "README.md", docs / "runbooks" / "README.md"]
    reached = {target for index in indexes for target in _links(index)}
    assert set(docs.rglob("*.md")) - reached - {docs / "README.md"} == set()


def test_readme_opens_with_the_two_commands(repository: Path) -> None:
    """`make run` and `make test` are the first two things a reader sees."""
    lines = (repository / "README.md").read_text().splitlines()
    commands = [line.split("#")[0].strip() for line in lines if line.startswith("make ")]
    assert commands[:2] == ["make run", "make test"]
    assert lines.index(next(line for line in lines if "make test" in line)) < 7
