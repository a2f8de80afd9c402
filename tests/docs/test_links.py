"""Links between pages resolve, fragments included."""

from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown_pages import ROOT, anchors, links, name_of, pages


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_resolve(page: Path) -> None:
    broken = []
    for line, target in links(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, fragment = unquote(target).partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or not goal.is_relative_to(ROOT):
            broken.append(f"line {line}: {target} does not exist")
        elif fragment and goal.suffix == ".md" and fragment not in anchors(goal):
            broken.append(f"line {line}: {target} names no heading")
    assert not broken, f"{name_of(page)}: {broken}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or not page.is_file():
            continue
        reached.add(page)
        todo += [
            (page.parent / unquote(target).partition("#")[0]).resolve() for _, target in links(page) if ".md" in target
        ]
    lost = [name_of(page) for page in pages() if page.is_relative_to(ROOT / "docs") and page not in reached]
    assert not lost, f"no path of links leads from README.md to {lost}"
