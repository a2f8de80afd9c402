"""The reader of Markdown pages that the other tests rely on."""

import pytest
from markdown_pages import parse, signatures


def test_blocks_have_their_line_their_language_and_their_text() -> None:
    found, prose = parse("x.md", "a\n```python run\nx = 1\n```\nb\n````text\n```\n````\n")
    assert [(b.place, b.info, b.text) for b in found] == [
        ("x.md:2", "python run", "x = 1\n"),
        ("x.md:6", "text", "```\n"),
    ]
    assert [line for line in prose if line] == ["a", "b"]


def test_a_block_that_is_never_closed_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"x\.md:2"):
        parse("x.md", "a\n```python\nx = 1\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("### `order(waiting, running, now)`", [("waiting", "running", "now")]),
        ("def order(self, waiting: Sequence[int], *, now: float = 0.0) -> X:", [("waiting", "now")]),
        ("`order()`", [()]),
        ("policy.order(a, b) and reorder(a)", []),
        ('order([], (1, 2), now=3) and order("x")', []),
        ("order(\n    a: dict[str, int],\n    b,\n)", [("a", "b")]),
    ],
)
def test_signatures_are_told_from_calls(text: str, expected: list[tuple[str, ...]]) -> None:
    assert [names for _, names in signatures(text, "order")] == expected
