"""Text: never half a character, and stop strings wherever tokens are cut."""

import random

import pytest
from fake_core import BOS, ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

from tokloom.api.detokenize import Detokenizer
from tokloom.api.stops import StopMatcher

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """Pieces of one to five bytes, wherever characters begin."""
    pieces = []
    while data:
        size = rng.randint(1, 5)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@given(TEXTS, st.randoms(use_true_random=False))
def test_pieces_are_whole_characters_and_make_the_text(text: str, rng: random.Random) -> None:
    pieces = cut(text.encode(), rng)
    tokenizer = ByteTokenizer(pieces)
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    given = b""
    for number, piece in enumerate(pieces):
        if rng.random() < 0.2:
            assert detokenizer.push(BOS) == ""
        given += piece
        shown += detokenizer.push(258 + number)
        whole = given.decode(errors="ignore")
        assert shown == whole, "everything that is complete is shown at once, and nothing more"
    assert detokenizer.finish() == ""
    assert shown == text


@given(st.binary(max_size=40), st.randoms(use_true_random=False))
def test_invalid_bytes_become_replacements_as_in_the_whole(data: bytes, rng: random.Random) -> None:
    pieces = cut(data, rng)
    detokenizer = Detokenizer(ByteTokenizer(pieces))
    shown = "".join(detokenizer.push(258 + number) for number in range(len(pieces))) + detokenizer.finish()
    assert shown == data.decode(errors="replace")


def test_an_incomplete_character_at_the_end_becomes_a_replacement() -> None:
    detokenizer = Detokenizer(ByteTokenizer())
    assert [detokenizer.push(byte) for byte in "é".encode()[:1]] == [""]
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.parametrize("at_start", [True, False])
def test_the_first_space_goes_only_where_an_answer_begins_and_the_tokenizer_says_so(
    strips: bool, at_start: bool
) -> None:
    pieces = [b" Paris", b" is", b" here"]
    tokenizer = ByteTokenizer(pieces, strips=strips)
    detokenizer = Detokenizer(tokenizer, at_start=at_start)
    shown = "".join(detokenizer.push(token) for token in (BOS, 258, 259, 260))
    assert shown == (tokenizer.decode([258, 259, 260], skip_special=True) if at_start else " Paris is here")


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
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 8), min_size=20, max_size=20),
    st.booleans(),
)
def test_stop_strings_do_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], sizes: list[int], include: bool
) -> None:
    matcher = StopMatcher(stops, include=include)
    wanted, matched = reference(text, stops)
    shown = ""
    rest = text
    for size in sizes:
        if not rest or matcher.matched is not None:
            break
        shown += matcher.push(rest[:size])
        assert wanted.startswith(shown) or include, "nothing of a stop string is shown"
        rest = rest[size:]
    shown += matcher.finish()
    assert (shown, matcher.matched) == (wanted + (matched or "" if include else ""), matched)


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_only_what_may_become_a_stop_string_is_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    given = shown = ""
    for character in text:
        given += character
        shown += matcher.push(character)
        if matcher.matched is not None:
            return
        held = given[len(shown) :]
        longest = max((i for stop in stops for i in range(len(stop)) if given.endswith(stop[:i])), default=0)
        assert len(held) == longest


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_stop_string_across_pieces_is_cut_off(size: int) -> None:
    text = "one two END three"
    matcher = StopMatcher(["END"])
    shown = "".join(matcher.push(text[i : i + size]) for i in range(0, len(text), size))
    assert shown == "one two "
    assert matcher.matched == "END"
    assert matcher.push("more") == matcher.finish() == ""
