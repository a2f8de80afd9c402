"""BoundedTemplate: a chat template whose time and memory are bounded, whatever its text.

A checkpoint brings its template, so the text is not trusted. It is compiled with Jinja's sandbox to code in which every
operation first counts what it will cost (`budget`); no clock is read, so that the same conversation always gets the
same answer. Values are plain data and a few classes of `values`; what may be done with them is a list, not a ban.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from jinja2 import TemplateSyntaxError
from jinja2.runtime import Context
from jinja2.utils import missing

from tokloom.plugins.models.decoder.template_sandbox.budget import (
    MAX_MEMORY,
    MAX_SYNTAX_DEPTH,
    MAX_TEXT,
    TemplateFailure,
    TemplateLimit,
)
from tokloom.plugins.models.decoder.template_sandbox.compiler import compile_template
from tokloom.plugins.models.decoder.template_sandbox.filters import FILTERS
from tokloom.plugins.models.decoder.template_sandbox.functions import FUNCTIONS, clock_function
from tokloom.plugins.models.decoder.template_sandbox.runtime import Runtime
from tokloom.plugins.models.decoder.template_sandbox.sequences import TESTS

#: characters of an error's text
_MAX_MESSAGE: Final = 500
T = TypeVar("T")


class BoundedTemplate:
    """Hugging Face's conventions: blocks trimmed, loop controls, `{% generation %}`, `raise_exception`, plain `tojson`.

    Args:
        text: the template.
        clock: what `strftime_now` reads; without it templates have no such function.

    Raises:
        TemplateLimit: the text is too long, or too deeply nested.
        TemplateFailure: it is no template.
    """

    def __init__(self, text: str, *, clock: Callable[[], datetime] | None = None) -> None:
        self._globals: dict[str, object] = dict(FUNCTIONS)
        if clock is not None:
            self._globals["strftime_now"] = clock_function(clock)
        self._program = _guarded(partial(compile_template, text))

    def render(self, variables: Mapping[str, object]) -> str:
        """The template's text. Raises TemplateLimit, or TemplateFailure for any other error in it."""
        return _guarded(partial(self._render, variables))

    def _render(self, variables: Mapping[str, object]) -> str:
        runtime = Runtime(FILTERS, TESTS)
        names = dict(self._globals)
        for name in self._program.names & variables.keys():
            names[name] = runtime.plain(variables[name])
        blocks = {
            name: partial(block, missing=missing, environment=runtime) for name, block in self._program.blocks.items()
        }
        context = Context(runtime, names, None, blocks)  # type: ignore[arg-type]
        pieces: list[str] = []
        size = 0
        for piece in self._program.root(context, missing, runtime):
            size += len(piece)
            if size > MAX_TEXT:
                raise TemplateLimit("the length of the result", MAX_TEXT)
            pieces.append(piece)
        return "".join(pieces)


def _guarded(function: Callable[[], T]) -> T:
    """The result of `function`; an error without the frames, which would keep all that the template made."""
    try:
        return function()
    except (TemplateLimit, TemplateFailure) as error:
        problem: Exception = error
    except RecursionError:
        problem = TemplateLimit("the depth of a template", MAX_SYNTAX_DEPTH)
    except MemoryError:  # CPython's parser says so of nested code, and only memory that others hold makes it true
        problem = TemplateLimit("memory", MAX_MEMORY)
    except TemplateSyntaxError as error:
        problem = TemplateFailure(_shortened(f"line {error.lineno}: {error.message}"))
    except Exception as error:  # a template raises what its expressions raise
        problem = TemplateFailure(_shortened(str(error) or type(error).__name__))
    problem.__context__ = None
    raise problem.with_traceback(None)


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_MESSAGE else text[:_MAX_MESSAGE] + "…"
