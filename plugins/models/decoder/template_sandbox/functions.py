"""The functions that chat templates may call by name."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

from jinja2 import TemplateError

from tokloom.plugins.models.decoder.template_sandbox.budget import TemplateLimit
from tokloom.plugins.models.decoder.template_sandbox.runtime import Runtime
from tokloom.plugins.models.decoder.template_sandbox.values import Cycler, Function, Joiner

#: items of a `range`, as in Jinja's own sandbox
MAX_RANGE: Final = 100_000
#: characters of a date's format; its fields have no width
MAX_DATE: Final = 200
_FIELD: Final = re.compile(r"%(?![-_0^#]?[A-Za-z%])")


def _range(runtime: Runtime, /, *bounds: Any) -> range:
    made = range(*bounds)
    try:
        length = len(made)
    except OverflowError:
        length = MAX_RANGE + 1
    if length > MAX_RANGE:
        raise TemplateLimit("the length of a range", MAX_RANGE)
    runtime.spend(2, 48)
    return made


def _raise(runtime: Runtime, message: Any, /) -> NoReturn:
    raise TemplateError(runtime.text(message))


def _cycler(runtime: Runtime, /, *items: Any) -> Cycler:
    runtime.spend(5, 100)
    return Cycler(items)


def _joiner(runtime: Runtime, sep: Any = ", ", /) -> Joiner:
    runtime.spend(5, 100)
    return Joiner(sep)


def clock_function(clock: Callable[[], datetime]) -> Function:
    """`strftime_now(format)`, with what `clock` says."""

    def call(runtime: Runtime, format: Any, /) -> str:
        text = runtime.text(format)
        if len(text) > MAX_DATE or _FIELD.search(text):
            raise TemplateLimit("the format of a date", MAX_DATE)
        runtime.spend(20)
        return runtime.made(clock().strftime(text))

    return Function("strftime_now", call)


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "range": _range,
    "dict": Runtime.table,
    "namespace": Runtime.namespace,
    "cycler": _cycler,
    "joiner": _joiner,
    "raise_exception": _raise,
}
FUNCTIONS: Final = {name: Function(name, function) for name, function in _FUNCTIONS.items()}
