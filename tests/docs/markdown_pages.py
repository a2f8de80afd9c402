"""The Markdown pages of the repository, and what tests look for in them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)(```+)(.*)$")
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: `info` is what stands after the backticks, `line` the line of the opening fence."""

    page: str
    line: int
    info: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """All pages that readers are meant to find."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parse(name: str, text: str) -> tuple[list[Block], list[str]]:
    """The fenced blocks of a page, and its lines with the blocks left empty. Raises ValueError for an open fence."""
    blocks: list[Block] = []
    prose: list[str] = []
    fence, info, start, inside = "", "", 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        match = _FENCE.match(line)
        if not fence:
            prose.append("" if match else line)
            if match:
                fence, info, start, inside = match[2], match[3].strip(), number, []
        elif match and match[2] == fence and not match[3].strip():
            blocks.append(Block(name, start, info, "\n".join(inside) + "\n"))
            prose.append("")
            fence = ""
        else:
            inside.append(line)
            prose.append("")
    if fence:
        raise ValueError(f"{name}:{start}: this block is never closed")
    return blocks, prose


def blocks(*languages: str) -> list[Block]:
    """Every fenced block in one of these languages, over all pages."""
    found: list[Block] = []
    for path in pages():
        found += parse(name_of(path), path.read_text(encoding="utf-8"))[0]
    return [block for block in found if block.info.split(" ")[0] in languages]


def links(path: Path) -> Iterator[tuple[int, str]]:
    """Line and target of every link outside code."""
    for number, line in enumerate(parse(name_of(path), path.read_text(encoding="utf-8"))[1], 1):
        for match in _LINK.finditer(re.sub(r"`[^`]*`", "", line)):
            yield number, match[1]


def anchors(path: Path) -> set[str]:
    """The fragments that headings of a page can be reached by, as code hosts derive them."""
    found: set[str] = set()
    for line in parse(name_of(path), path.read_text(encoding="utf-8"))[1]:
        if line.startswith("#"):
            title = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            found.add(title.replace(" ", "-"))
    return found


def signatures(text: str, method: str) -> list[tuple[int, tuple[str, ...]]]:
    """Every place where a page shows a method's parameters: line and names, without `self`, types and defaults.

    A call with arguments that are not names, as in an example, is not a signature.
    """
    found = []
    for match in re.finditer(rf"(?<![\w.]){method}\(", text):
        inner = _until_closed(text, match.end())
        names = tuple(
            name for name in (_parameter(part) for part in _split(inner)) if name not in ("self", "*", "/", "")
        )
        if all(name.isidentifier() for name in names):
            found.append((text.count("\n", 0, match.start()) + 1, names))
    return found


def _until_closed(text: str, start: int) -> str:
    depth = 1
    for index in range(start, len(text)):
        depth += (text[index] in "([{") - (text[index] in ")]}")
        if depth == 0:
            return text[start:index]
    return text[start:]


def _split(inner: str) -> list[str]:
    parts, depth = [""], 0
    for char in inner:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _parameter(part: str) -> str:
    return re.split(r"[:=]", part.strip(), maxsplit=1)[0].strip()
