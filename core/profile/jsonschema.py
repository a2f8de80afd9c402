"""profile_schema: JSON Schema (draft 2020-12) of profiles, from the attrs classes and, if given, installed plugins."""

import types
import typing
from collections.abc import Mapping
from typing import Any

import attrs

from tokloom.core.catalog import Catalog
from tokloom.core.profile.schema import SCHEMA, SLOTS, EngineSection, ModelSection
from tokloom.core.profile.types import AutoByteSize, AutoInt, ByteSize, Secret
from tokloom.sdk import CompositionError

Schema = dict[str, Any]
#: kinds whose plugins may be left out
LEFT_OUT_KINDS = ("speculator", "connector", "observer", "logits")
_SIZE: Schema = {"type": ["integer", "string"], "description": "Bytes, or text such as 512MiB."}


def type_schema(kind: Any) -> Schema:
    """The schema of one type."""
    simple: dict[Any, Schema] = {
        int: {"type": "integer"},
        float: {"type": "number"},
        str: {"type": "string"},
        bool: {"type": "boolean"},
        ByteSize: _SIZE,
        AutoByteSize: {**_SIZE, "description": "Bytes, text such as 512MiB, or auto."},
        AutoInt: {"anyOf": [{"type": "integer", "minimum": 1}, {"const": "auto"}]},
        Secret: {
            "type": "object",
            "properties": {"env": {"type": "string", "minLength": 1}, "file": {"type": "string", "minLength": 1}},
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
        },
        type(None): {"type": "null"},
    }
    if kind in simple:
        return dict(simple[kind])
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [type_schema(argument) for argument in arguments]}
    if origin in (tuple, list, frozenset, set) or (origin is not None and issubclass(origin, typing.Iterable)):
        if origin is dict or (isinstance(origin, type) and issubclass(origin, typing.Mapping)):
            return {"type": "object", "additionalProperties": type_schema(arguments[-1])}
        return {"type": "array", "items": type_schema(arguments[0])}
    return class_schema(kind) if attrs.has(kind) else {}


def class_schema(kind: type) -> Schema:
    """The schema of an attrs class: its fields, no others."""
    attrs.resolve_types(kind)
    properties: Schema = {}
    required = []
    for field in attrs.fields(kind):
        schema = type_schema(field.type)
        if field.metadata.get("help"):
            schema["description"] = field.metadata["help"]
        if field.default is attrs.NOTHING:
            required.append(field.name)
        elif isinstance(field.default, (int, float, str, bool)):
            schema["default"] = "auto" if field.type in (AutoInt, AutoByteSize) and not field.default else field.default
        properties[field.name] = schema
    result: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        result["required"] = required
    return result


def profile_schema(catalog: Catalog | None = None, claims: Mapping[str, type] | None = None) -> Schema:
    """The schema of a whole profile; with a catalog, `plugin` is an enumeration and options are described. `claims`:
    tables of front ends and their classes.
    """

    def section(kind: str) -> Schema:
        names = [row.name for row in catalog.listed(kind)] if catalog is not None else []
        plugin: Schema = {"type": "string", "description": f"An installed {kind} plugin, or off."}
        if names:
            plugin["examples"] = sorted(set(names))
        table: Schema = {
            "type": "object",
            "properties": {
                "plugin": plugin,
                "options": {"type": "object"},
                "on_unsupported": {"enum": ["error", "fallback"] if kind in LEFT_OUT_KINDS else ["error"]},
            },
            "additionalProperties": False,
        }
        rules = [
            {
                "if": {"properties": {"plugin": {"const": name}}, "required": ["plugin"]},
                "then": {"properties": {"options": schema}},
            }
            for name in sorted(set(names))
            if (schema := _options(catalog, kind, name)) is not None
        ]
        if rules:
            table["allOf"] = rules
        return {"anyOf": [{"type": "string"}, table]}

    properties: Schema = {
        "schema": {"const": SCHEMA},
        "extends": {"type": "string", "description": "builtin:NAME or a path relative to this file."},
        "model": class_schema(ModelSection),
        "engine": class_schema(EngineSection),
        "adapters": {
            "type": "object",
            "description": "The name that requests use -> the folder of the adapter.",
            "additionalProperties": {"type": "string", "minLength": 1},
        },
        "observers": {"type": "array", "items": section("observer")},
        "logits": {"type": "array", "items": section("logits")},
        "kv": {
            "type": "object",
            "properties": {
                "allocator": section("allocator"),
                "codec": section("codec"),
                "tiers": {"type": "array", "items": section("connector")},
            },
            "additionalProperties": False,
        },
    }
    properties |= {table: class_schema(kind) for table, kind in (claims or {}).items()}
    for path, kind in SLOTS.items():
        if "." not in path and path != "attention":
            properties[path] = section(kind)
    phases = {"type": "object", "properties": {"decode": section("attention"), "prefill": section("attention")}}
    properties["attention"] = {"anyOf": [section("attention"), phases]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Tokloom profile",
        "type": "object",
        "required": ["schema"],
        "properties": properties,
        "patternProperties": {"^x-": {}},
    }


def _options(catalog: Catalog | None, kind: str, name: str) -> Schema | None:
    if catalog is None:
        return None
    try:
        return class_schema(catalog.resolve(kind, name).offer.config)  # type: ignore[arg-type]
    except CompositionError:
        return None
