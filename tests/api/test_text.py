"""Text: never half a character, and stop strings wherever tokens are cut."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokloom.api.detokenize import Detokenizer
from tokloom.api.stops import StopMatcher


class Bytes:
    """A tokenizer whose ids are bytes; 256 is special."""

    special_ids = frozenset({256})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])


@given(st.text(max_size=60), st.randoms(use_true_random=False))
def test_pieces_are_whole_characters_and_make_the_text(text: str, rng: random.Random) -> None:
    detokenizer = Detokenizer(Bytes())  # type: ignore[arg-type]
    encoded = text.encode("utf-8", errors="ignore")
    pieces = []
    for byte in encoded:
        if rng.random() < 0.2:
            pieces.append(detokenizer.push(256))
        pieces.append(detokenizer.push(byte))
    pieces.append(detokenizer.finish())
    assert "".join(pieces) == encoded.decode()
    assert not any("\ufffd" in piece for piece in pieces) or "\ufffd" in text


def test_an_incomplete_character_at_the_end_becomes_a_replacement() -> None:
    detokenizer = Detokenizer(Bytes())  # type: ignore[arg-type]
    assert [detokenizer.push(byte) for byte in "é".encode()[:1]] == [""]
    assert detokenizer.finish() == "\ufffd"


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Character by character: the first stop that is complete, the longest of those that complete together."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            stop = max(done, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.text("ab", max_size=20),
    st.lists(st.text("abc", min_size=1, max_size=4), max_size=3),
    st.randoms(use_true_random=False),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(text: str, stops: list[str], rng: random.Random) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    rest = text
    while rest and matcher.matched is None:
        size = rng.randint(1, 1)
        shown += matcher.push(rest[:size])
        rest = rest[size:]
    shown += matcher.finish()
    assert (shown, matcher.matched) == reference(text, stops)


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
def test_a_stop_string_across_pieces_is_cut_off(cut: str) -> None:
    text = "one two END three"
    matcher = StopMatcher(["END"])
    shown = "".join(matcher.push(text[i : i + int(cut)]) for i in range(0, len(text), int(cut)))
    assert shown == "one two "
    assert matcher.matched == "END"
    kept = StopMatcher(["END"], include=True)
    assert "".join(kept.push(character) for character in text) == "one two END"
