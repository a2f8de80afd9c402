"""Sizes in bytes, written by people."""

import re
from typing import Final

_UNITS: Final[dict[str, int]] = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", 1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_SIZE: Final = re.compile(r"(\d+)(?:\.(\d+))?\s*([a-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Whole bytes: `"4GiB"`, `"1.5 MB"`, `"4096"`; letters in either case, fractions rounded down.

    Raises ValueError on anything else, and on zero.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[3] not in _UNITS:
        raise ValueError(f'a size is written like "4GiB", "500MB" or "4096", not {text!r}')
    fraction = match[2] or ""
    scale = int("1" + "0" * len(fraction))
    size = int(match[1] + fraction) * _UNITS[match[3]] // scale
    if size < 1:
        raise ValueError(f"a size is at least one byte, not {text!r}")
    return size
