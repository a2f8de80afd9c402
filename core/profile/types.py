"""Types of profile values beyond TOML's own, and how strictly each is read."""

import re
from fractions import Fraction
from typing import Final, NewType

from tokloom.sdk import Secret as Secret

#: bytes; written as a number or as `"512MiB"`
ByteSize = NewType("ByteSize", int)
#: bytes, or `"auto"`, which becomes 0
AutoByteSize = NewType("AutoByteSize", int)
#: a positive number, or `"auto"`, which becomes 0
AutoInt = NewType("AutoInt", int)

_UNITS: Final = {"": 1, "b": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS.update({f"{unit}b": size for unit, size in list(_UNITS.items()) if unit in "kmgt" and unit})
_UNITS.update({f"{unit}ib": 1024**power for power, unit in enumerate("kmgt", 1)})
_SIZE: Final = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)\s*")


def parse_size(value: object) -> int:
    """Bytes from a number or text such as `2GiB`. Raises ValueError with what is expected."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match and match[2].lower() in _UNITS:
            size = Fraction(match[1]) * _UNITS[match[2].lower()]
            if match[2] or size.denominator == 1:
                return int(size)
    raise ValueError(f"expected a size such as 512MiB or a number of bytes, found {shown(value)}")


def shown(value: object) -> str:
    """A value with its TOML type, for messages."""
    if isinstance(value, bool):
        return f"boolean {str(value).lower()}"
    names = {str: "string", int: "integer", float: "float", list: "array", dict: "table"}
    for kind, name in names.items():
        if isinstance(value, kind):
            text = repr(value)
            return f"{name} {text if len(text) <= 60 else text[:57] + '...'}"
    return type(value).__name__
