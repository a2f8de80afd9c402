"""How a value that a caller gave is shown in an error: short, and without ever raising."""

import reprlib
from typing import Final

_LENGTH: Final = 80
#: more decimal digits than anybody reads; Python refuses to write integers of some thousands
_BITS: Final = 200


def shown(value: object) -> str:
    """At most 80 characters of `repr(value)`; the type alone where that cannot be had."""
    if isinstance(value, int) and value.bit_length() > _BITS:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        value = value[:_LENGTH]
    try:
        text = reprlib.repr(value) if isinstance(value, list | tuple | set | frozenset | dict) else repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    text = text.replace("\n", " ")
    return text if len(text) <= _LENGTH else text[: _LENGTH - 3] + "..."
