"""From trees to attrs classes, strictly: nothing is coerced, and everything that is wrong is found in one go.

cattrs finds the hook of a type; the hooks here differ from its own in that tables, arrays and texts are never taken for
each other, and in that validators run for every field that could be read, whatever is wrong with the others.
"""

import collections.abc
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeVar

import attrs
import cattrs
from attrs import frozen

from tokloom.core.profile.errors import Problem
from tokloom.core.profile.tree import Node
from tokloom.core.profile.types import AutoByteSize, AutoInt, ByteSize, Secret, parse_size, shown

T = TypeVar("T")
Path = tuple[str | int, ...]
Hook = Callable[[Any, Any], Any]


@frozen
class _Finding:
    """Something wrong at a path below the value at hand."""

    path: Path
    message: str
    help: str = ""
    at_key: bool = False
    secret: bool = False


class _Invalid(Exception):
    """All findings of one value."""

    def __init__(self, findings: list[_Finding]) -> None:
        super().__init__(findings[0].message)
        self.findings = findings


class _Exposed(ValueError):
    """A secret stands in the profile itself: what shows the line must hide it."""


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
    size = 0 if value == "auto" else parse_size(value)
    if size == 0 and value != "auto":
        raise ValueError(f'expected a size above 0 or "auto", found {shown(value)}')
    return size


def _secret(value: object, _: object) -> Secret:
    if isinstance(value, dict) and len(value) == 1:
        (key, text), *_rest = value.items()
        if key in ("env", "file") and isinstance(text, str) and text:
            return Secret(**{key: text})
    raise _Exposed('expected { env = "NAME" } or { file = "PATH" }: secrets are never written in a profile')


def _choice(value: object, kind: Any) -> object:
    allowed = kind.__args__
    if not any(type(value) is type(word) and value == word for word in allowed):
        words = ", ".join(f'"{word}"' if isinstance(word, str) else str(word) for word in allowed)
        raise ValueError(f"expected one of {words}, found {shown(value)}")
    return value


# -- containers --------------------------------------------------------------------------------------------------------


def _is_array(kind: Any) -> bool:
    origin = typing.get_origin(kind) or kind
    arrays = (list, tuple, set, frozenset, collections.abc.Sequence, collections.abc.Set, collections.abc.Iterable)
    return origin in arrays


def _array(kind: Any) -> Hook:
    origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
    fixed = arguments if origin is tuple and arguments and arguments[-1] is not Ellipsis else None
    make = origin if origin in (list, set, frozenset) else frozenset if origin is collections.abc.Set else tuple

    def hook(value: object, _: object) -> object:
        if not isinstance(value, list):
            raise ValueError(f"expected an array, found {shown(value)}")
        if fixed is not None and len(value) != len(fixed):
            raise ValueError(f"expected {len(fixed)} items, found {len(value)}")
        wanted = fixed or [arguments[0] if arguments else Any] * len(value)
        return make(_all(enumerate(value), lambda index: wanted[int(index)]))

    return hook


def _is_table(kind: Any) -> bool:
    origins = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
    return (typing.get_origin(kind) or kind) in origins


def _table(kind: Any) -> Hook:
    arguments = typing.get_args(kind)

    def hook(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"expected a table, found {shown(value)}")
        return dict(zip(value, _all(value.items(), lambda _: arguments[1] if arguments else Any), strict=True))

    return hook


def _all(items: Iterable[tuple[str | int, object]], kind_of: Callable[[str | int], Any]) -> list[Any]:
    """Every item structured, or all their findings."""
    done, findings = [], []
    for step, value in items:
        try:
            done.append(_CONVERTER.structure(value, kind_of(step)))
        except Exception as error:
            findings += _findings(error, (step,))
    if findings:
        raise _Invalid(findings)
    return done


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


def _union(kind: Any) -> Hook:
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    optional = len(members) < len(typing.get_args(kind))

    def hook(value: object, _: object) -> object:
        if value is None and optional:
            return None
        if len(members) == 1:
            return _CONVERTER.structure(value, members[0])
        reasons: list[str] = []
        for member in members:
            try:
                return _CONVERTER.structure(value, member)
            except Exception as error:
                reasons.append(_text(error))
        raise ValueError(", or ".join(reasons))

    return hook


# -- attrs classes -----------------------------------------------------------------------------------------------------


def _class(kind: Any) -> Hook:
    attrs.resolve_types(kind)
    fields = {field.alias or field.name: field for field in attrs.fields(kind) if field.init}

    def hook(value: object, _: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"expected a table, found {shown(value)}")
        findings = [_unknown(key, list(fields)) for key in value if key not in fields]
        given: dict[str, Any] = {}
        for name, field in fields.items():
            if name in value:
                try:
                    given[name] = _CONVERTER.structure(value[name], Any if field.type is None else field.type)
                except Exception as error:
                    findings += _findings(error, (name,))
            elif field.default is attrs.NOTHING:
                findings.append(_Finding((), f"missing key `{name}`", at_key=True))
        findings += _refused(kind, fields, given)
        if findings:
            raise _Invalid(findings)
        return kind(**given)

    return hook


def _unknown(key: str, known: list[str]) -> _Finding:
    near = difflib.get_close_matches(key, known, 1)
    help = f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(sorted(known)) or 'none'}"
    return _Finding((key,), f"unknown key `{key}`", help, at_key=True)


def _refused(kind: Any, fields: dict[str, "attrs.Attribute[Any]"], given: dict[str, Any]) -> Iterator[_Finding]:
    """What validators say of the fields that could be read. They see an instance that may lack the others."""
    instance = object.__new__(kind)
    for name, field in fields.items():
        if name in given:
            object.__setattr__(instance, field.name, given[name])
        elif not isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]
            object.__setattr__(instance, field.name, field.default)
    for name, field in fields.items():
        if name not in given or field.validator is None or field.converter is not None:
            continue
        try:
            field.validator(instance, field, given[name])
        except AttributeError:  # it looks at a field that could not be read, or that the class computes itself
            continue
        except Exception as error:
            yield _Finding((name,), _text(error))


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    for is_kind, factory in ((_is_array, _array), (_is_table, _table), (_is_union, _union), (attrs.has, _class)):
        converter.register_structure_hook_factory(is_kind, factory)
    for kind, name in ((int, "an integer"), (str, "a string"), (bool, "true or false")):
        converter.register_structure_hook(kind, _strict(kind, name))
    converter.register_structure_hook(float, _float)
    converter.register_structure_hook(ByteSize, lambda value, _: parse_size(value))
    converter.register_structure_hook(AutoByteSize, _auto_size)
    converter.register_structure_hook(AutoInt, _auto_int)
    converter.register_structure_hook(Secret, _secret)
    converter.register_structure_hook_func(lambda kind: getattr(kind, "__origin__", None) is Literal, _choice)
    return converter


_CONVERTER = _converter()


def structure(node: Node, kind: type[T], path: str, problems: list[Problem]) -> T | None:
    """An instance of `kind` from a tree, or None with the problems appended."""
    try:
        return _CONVERTER.structure(node.plain(), kind)
    except Exception as error:  # an option class may raise anything from its own hooks
        for found in _findings(error, ()):
            place = node.find(found.path).place
            dotted = ".".join([*([path] if path else []), *map(str, found.path)])
            problems.append(Problem(found.message, place, dotted, found.help, found.at_key, found.secret))
    return None


def _findings(error: Exception, at: Path) -> list[_Finding]:
    """What an error of the value at a path says, seen from above it."""
    if isinstance(error, _Invalid):
        return [attrs.evolve(found, path=(*at, *found.path)) for found in error.findings]
    for argument in error.args[1:]:  # attrs validators name their field
        if isinstance(argument, attrs.Attribute):
            at = (*at, argument.alias or argument.name)
    return [_Finding(at, _text(error), secret=isinstance(error, _Exposed))]


def _text(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__
