"""Where keys and values of a TOML text stand. The text has been accepted by `tomllib` before; this only finds places.

TOML 1.0: https://toml.io/en/v1.0.0. Covers dotted and quoted keys, arrays of tables, inline tables, multi-line arrays
and strings.
"""

import tomllib
from typing import Final

from tokloom.core.profile.errors import Place
from tokloom.core.profile.tree import Positions

Path = tuple[str | int, ...]
_BARE_END: Final = frozenset(" \t.=]}\n,#\r")


class _Scanner:
    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.at = 0
        self.lines = text.split("\n")
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.positions = Positions()
        self.arrays: dict[Path, int] = {}

    def place(self, key: tuple[int, int], value: tuple[int, int]) -> Place:
        """A place from offsets `(begin, end)` of key and value."""
        line = self._line(value[0])
        key_line = self._line(key[0])
        text = self.lines[line].rstrip("\r")
        end = min(value[1], self.starts[line] + len(text))
        same = key_line == line
        return Place(
            self.source,
            line + 1,
            text,
            value[0] - self.starts[line] + 1,
            max(1, end - value[0]),
            (key[0] if same else value[0]) - self.starts[line] + 1,
            (key[1] - key[0]) if same else max(1, end - value[0]),
        )

    def _line(self, offset: int) -> int:
        low, high = 0, len(self.lines) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.starts[middle] <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def blank(self, newlines: bool) -> None:
        """Skip spaces and comments, and line ends if `newlines`."""
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "#":
                while self.at < len(self.text) and self.text[self.at] != "\n":
                    self.at += 1
            elif character in " \t\r" or (newlines and character == "\n"):
                self.at += 1
            else:
                return

    def key(self) -> tuple[list[str], tuple[int, int]]:
        """A dotted key and where its last part stands."""
        parts: list[str] = []
        while True:
            self.blank(False)
            begin = self.at
            if self.text[self.at] in "\"'":
                self.string()
                parts.append(tomllib.loads("k = " + self.text[begin : self.at])["k"])
            else:
                while self.at < len(self.text) and self.text[self.at] not in _BARE_END:
                    self.at += 1
                parts.append(self.text[begin : self.at])
            where = (begin, self.at)
            self.blank(False)
            if self.at >= len(self.text) or self.text[self.at] != ".":
                return parts, where
            self.at += 1

    def string(self) -> None:
        quote = self.text[self.at]
        fence = quote * 3 if self.text.startswith(quote * 3, self.at) else quote
        self.at += len(fence)
        while not self.text.startswith(fence, self.at):
            self.at += 2 if quote == '"' and self.text[self.at] == "\\" else 1
        self.at += len(fence)
        while len(fence) == 3 and self.at < len(self.text) and self.text[self.at] == quote:
            self.at += 1

    def value(self, path: Path, key: tuple[int, int]) -> None:
        begin = self.at
        character = self.text[self.at]
        if character in "\"'":
            self.string()
        elif character == "[":
            self.array(path, key)
        elif character == "{":
            self.inline(path)
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}#\n":
                self.at += 1
            while self.text[self.at - 1] in " \t\r":
                self.at -= 1
        self.positions.places[path] = self.place(key, (begin, self.at))

    def array(self, path: Path, key: tuple[int, int]) -> None:
        self.at += 1
        index = 0
        while True:
            self.blank(True)
            if self.text[self.at] == "]":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self.value((*path, index), (self.at, self.at + 1))
            index += 1

    def inline(self, path: Path) -> None:
        self.at += 1
        while True:
            self.blank(True)
            if self.text[self.at] == "}":
                self.at += 1
                return
            if self.text[self.at] == ",":
                self.at += 1
                continue
            self.pair(path)

    def pair(self, table: Path) -> None:
        parts, where = self.key()
        self.at += 1  # the equals sign
        self.blank(False)
        path = table
        for part in parts[:-1]:
            path = (*path, part)
            self.positions.places.setdefault(path, self.place(where, where))
        self.value((*path, parts[-1]), where)

    def header(self) -> Path:
        """`[table]` or `[[table]]`."""
        double = self.text.startswith("[[", self.at)
        self.at += 2 if double else 1
        parts, where = self.key()
        self.at += 2 if double else 1
        path: Path = ()
        for index, part in enumerate(parts):
            path = (*path, part)
            last = index == len(parts) - 1
            if last and double:
                self.positions.places.setdefault(path, self.place(where, where))
                self.arrays[path] = self.arrays.get(path, -1) + 1
            if path in self.arrays:
                path = (*path, self.arrays[path])
            self.positions.places.setdefault(path, self.place(where, where))
        return path

    def run(self) -> Positions:
        table: Path = ()
        while True:
            self.blank(True)
            if self.at >= len(self.text):
                return self.positions
            if self.text[self.at] == "[":
                table = self.header()
            else:
                self.pair(table)


def scan(text: str, source: str) -> Positions:
    """Places of every key and value by path. A text that confuses the scanner gives the places found so far."""
    scanner = _Scanner(text.replace("\r\n", "\n"), source)
    try:
        return scanner.run()
    except (IndexError, tomllib.TOMLDecodeError):
        return scanner.positions
