"""Places of keys and values against an oracle: the text at a place, read alone, is the value that tomllib gives."""

import json
import random
import tomllib
from typing import Any

import pytest

from tokloom.core.profile.scan import scan

KEYS = ["a", "b-c", "d_1", "10", "with space", "dot.ted", 'quo"te', "漢字", ""]


class Writer:
    """Writes random documents in every notation that TOML has."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def key(self, name: str) -> str:
        bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if bare and self.rng.random() < 0.7:
            return name
        if '"' not in name and self.rng.random() < 0.5:
            return f"'{name}'"
        return json.dumps(name, ensure_ascii=self.rng.random() < 0.5)

    def gap(self) -> str:
        return self.rng.choice(["", " ", "\t", "  "])

    def lines(self) -> str:
        return self.rng.choice(["", " ", "\n", "\n# a ] comment }\n", "\r\n\t"])

    def scalar(self) -> str:
        text = self.rng.choice(["", "x", "a # b", "tab\there", 'quote " inside', "back\\slash", "漢字", "]}, ="])
        return self.rng.choice(
            [
                json.dumps(text),
                "'" + text.replace("\t", " ") + "'",
                '"""' + json.dumps(text)[1:-1] + '"" \n  second # line"""',
                '"""ends with two quotes"""""',
                "'''\nraw \\ text''''",
                str(self.rng.randrange(-50, 50)),
                "1_000",
                "0x_1f".replace("_", ""),
                "-1.5e3",
                "inf",
                "true",
                "false",
                "1979-05-27T07:32:00Z",
                "1979-05-27 07:32:00",
                "07:32:00",
            ]
        )

    def value(self, depth: int) -> str:
        choice = self.rng.random()
        if depth and choice < 0.25:
            items = [self.lines() + self.value(depth - 1) + self.lines() for _ in range(self.rng.randrange(4))]
            return "[" + ",".join(items) + (self.rng.choice(["", ","]) if items else "") + self.lines() + "]"
        if depth and choice < 0.45:
            pairs = [f"{self.gap()}{self.pair(name, depth - 1)}{self.gap()}" for name in self.names(3)]
            return "{" + ",".join(pairs) + "}"
        return self.scalar()

    def names(self, most: int) -> list[str]:
        return self.rng.sample(KEYS, self.rng.randrange(most + 1))

    def pair(self, name: str, depth: int) -> str:
        path = [name, *self.names(2)] if self.rng.random() < 0.3 else [name]
        dot = f"{self.gap()}.{self.gap()}"
        return f"{dot.join(map(self.key, path))}{self.gap()}={self.gap()}{self.value(depth)}"

    def document(self) -> str:
        end = self.rng.choice(["\n", "\r\n"])
        parts = [self.pair(name, 2) for name in self.names(3)]
        for name in self.names(4):
            header = f"{self.gap()}{self.key('t-' + name)}{self.gap()}"
            if self.rng.random() < 0.4:
                for _ in range(self.rng.randrange(1, 4)):
                    parts += [f"[[{header}]]  # again", *(self.pair(inner, 2) for inner in self.names(3))]
            else:
                parts += [f"[{header}. sub ]", *(self.pair(inner, 2) for inner in self.names(3))]
        return end.join(parts) + end


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


@pytest.mark.parametrize("seed", range(300))
def test_the_text_at_a_place_is_the_value(seed: int) -> None:
    text = Writer(seed).document()
    parsed = tomllib.loads(text)
    places = scan(text, "p.toml").places
    lines = text.replace("\r\n", "\n").split("\n")
    for path, value in leaves(parsed):
        place = places[path]
        line = lines[place.line - 1]
        assert place.text == line
        piece = line[place.column - 1 : place.column - 1 + place.width]
        if piece.startswith(('"""', "'''")):  # goes on below: the mark ends with its line
            assert isinstance(value, str)
            continue
        assert tomllib.loads(f"v = {piece}")["v"] == value, (path, piece)
        if isinstance(path[-1], str):
            key = line[place.key_column - 1 : place.key_column - 1 + place.key_width]
            assert tomllib.loads(f"{key} = 1") == {path[-1]: 1}, (path, key)


def test_the_documents_have_every_notation() -> None:
    text = "".join(Writer(seed).document() for seed in range(300))
    for notation in ('"""', "'''", "[[", "{", " . ", "# a ]", "\r\n", "'with space'", "1979-05-27 07"):
        assert notation in text, notation
