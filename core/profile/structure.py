"""From trees to attrs classes through cattrs, strictly: unknown keys, wrong types and bad values become problems."""

import difflib
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import attrs
import cattrs
from cattrs.errors import ClassValidationError, ForbiddenExtraKeysError, IterableValidationError
from cattrs.strategies import configure_union_passthrough

from tokloom.core.profile.errors import Problem
from tokloom.core.profile.tree import Node
from tokloom.core.profile.types import AutoByteSize, AutoInt, ByteSize, Secret, parse_size, shown

T = TypeVar("T")
Path = tuple[str | int, ...]


def _strict(kind: type, name: str) -> Any:
    def hook(value: object, _: object) -> object:
        if type(value) is not kind:
            raise ValueError(f"expected {name}, found {shown(value)}")
        return value

    return hook


def _float(value: object, _: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a number, found {shown(value)}")
    return float(value)


def _auto_int(value: object, _: object) -> int:
    if value == "auto":
        return 0
    if type(value) is not int or value == 0:
        raise ValueError(f'expected a positive integer or "auto", found {shown(value)}')
    return value


def _auto_size(value: object, _: object) -> int:
    return 0 if value == "auto" else parse_size(value)


def _secret(value: object, _: object) -> Secret:
    if isinstance(value, dict) and len(value) == 1:
        (key, text), *_rest = value.items()
        if key in ("env", "file") and isinstance(text, str) and text:
            return Secret(**{key: text})
    raise ValueError('expected { env = "NAME" } or { file = "PATH" }: secrets are never written in a profile')


def _choice(value: object, kind: Any) -> object:
    allowed = kind.__args__
    if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
        words = ", ".join(f'"{word}"' if isinstance(word, str) else str(word) for word in allowed)
        raise ValueError(f"expected one of {words}, found {shown(value)}")
    return value


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True, detailed_validation=True)
    for kind, name in ((int, "an integer"), (str, "a string"), (bool, "true or false")):
        converter.register_structure_hook(kind, _strict(kind, name))
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook(ByteSize, lambda value, _: parse_size(value))
    converter.register_structure_hook(AutoByteSize, _auto_size)
    converter.register_structure_hook(AutoInt, _auto_int)
    converter.register_structure_hook(Secret, _secret)
    converter.register_structure_hook_func(lambda kind: getattr(kind, "__origin__", None) is Literal, _choice)
    configure_union_passthrough(bool | int | float | str | None, converter)
    return converter


_CONVERTER = _converter()


def structure(node: Node, kind: type[T], path: str, problems: list[Problem]) -> T | None:
    """An instance of `kind` from a tree, or None with the problems appended."""
    value = node.plain()
    if not isinstance(value, dict):
        problems.append(Problem(f"expected a table, found {shown(value)}", node.place, path))
        return None
    try:
        return _CONVERTER.structure(value, kind)
    except ClassValidationError as error:
        problems += list(_flatten(error, node, (), path, kind))
    except Exception as error:  # an option class may raise anything from its own hooks
        problems.append(Problem(_text(error), node.place, path))
    return None


def _flatten(error: BaseException, root: Node, at: Path, prefix: str, kind: Any) -> Iterable[Problem]:
    """Leaves of cattrs' group of errors, each with the path that its notes tell."""
    if isinstance(error, (ClassValidationError, IterableValidationError)):
        inner_kind = getattr(error, "cl", kind)
        with_notes: Any = error.group_exceptions()
        for inner, note in with_notes[0]:
            step = note.name if hasattr(note, "name") else note.index
            yield from _flatten(inner, root, (*at, step), prefix, note.type)
        for inner in with_notes[1]:
            yield from _flatten(inner, root, at, prefix, inner_kind)
        return
    if isinstance(error, ForbiddenExtraKeysError):
        known = [field.alias or field.name for field in attrs.fields(error.cl)] if attrs.has(error.cl) else []
        for key in sorted(error.extra_fields):
            yield _unknown(key, known, root, at, prefix)
        return
    field_name = _validated_field(error)
    if field_name:
        at = (*at, field_name)
    yield Problem(_text(error), root.find(at).place, _dotted(prefix, at))


def _unknown(key: str, known: list[str], root: Node, at: Path, prefix: str) -> Problem:
    near = difflib.get_close_matches(key, known, 1)
    help = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(known)) or 'none'}"
    place = root.find((*at, key)).place
    return Problem(f"unknown key `{key}`", place, _dotted(prefix, (*at, key)), help, at_key=True)


def _validated_field(error: BaseException) -> str:
    """The field that an attrs validator complained about, if it says so."""
    for argument in error.args[1:]:
        if isinstance(argument, attrs.Attribute):
            return argument.alias or argument.name
    return ""


def _text(error: BaseException) -> str:
    if isinstance(error, KeyError):
        return f"missing key `{error.args[0]}`"
    if isinstance(error, TypeError) and "missing" in str(error):
        return str(error).partition(") ")[2] or str(error)
    text = str(error.args[0]) if error.args else type(error).__name__
    return text


def _dotted(prefix: str, path: Path) -> str:
    return ".".join([prefix, *map(str, path)]) if prefix else ".".join(map(str, path))
