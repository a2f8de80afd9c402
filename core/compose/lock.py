"""Locks: what a composition was made of, so that a later start can refuse anything else.

What a profile leaves to `auto` is locked as `auto`: the same lock holds on a machine with more memory or processors.
"""

import hashlib
import json
import os
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import attrs

from tokloom.core.compose.composer import Composer
from tokloom.core.composition import Composition
from tokloom.core.profile import EngineSection
from tokloom.core.profile.types import AutoByteSize, AutoInt
from tokloom.sdk import KVGroup, ProfileError

_VERSION = 1


def make_lock(composer: Composer, composition: Composition) -> str:
    """TOML text: engine settings, KV groups, options, distributions with versions and hashes, contract versions,
    digests of model and adapters.
    """
    spec = composition.model.spec
    lines = [f"lock = {_VERSION}", "", "[model]", f"name = {_quote(spec.name)}", f"digest = {_quote(spec.digest)}"]
    lines += [f"dtype = {_quote(spec.dtype)}", f"chat_template = {_quote(_template(composition))}", "", "[namespace]"]
    lines += [f"digest = {_quote(composition.layout.namespace.hex())}", "", "[engine]"]
    lines += _engine(composer.profile.engine)
    for name, adapter in composition.adapters.items():
        lines += ["", f"[adapter.{_quote(name)}]", f"digest = {_quote(adapter.info.digest)}"]
    for group in composition.layout.groups:
        lines += ["", f"[group.{group.id}]", *_group(group)]
    for choice in sorted(composer.explanation.choices, key=lambda choice: choice.section):
        lines += ["", f"[plugin.{_quote(choice.section)}]", f"kind = {_quote(choice.kind)}"]
        lines += [f"name = {_quote(choice.plugin)}", f"distribution = {_quote(choice.distribution)}"]
        lines += [f"contract = {_quote(choice.contract)}"]
        lines += [f"option.{_quote(key)} = {_quote(value)}" for key, (value, _) in sorted(choice.options.items())]
    for name in sorted({choice.distribution for choice in composer.explanation.choices}):
        version, digest = _distribution(name)
        lines += ["", f"[distribution.{_quote(name)}]", f"version = {_quote(version)}", f"hash = {_quote(digest)}"]
    return "\n".join(lines) + "\n"


def _template(composition: Composition) -> str:
    """A hash of the chat template, which decides what the model reads; empty: there is none."""
    tokenizer = composition.model.tokenizer
    text = "" if tokenizer is None else tokenizer.chat_template
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def _engine(section: EngineSection) -> list[str]:
    """The section as the profile has it."""
    lines = []
    for field in attrs.fields(EngineSection):
        value = getattr(section, field.name)
        auto = field.type in (AutoInt, AutoByteSize) and not value
        lines.append(f"{field.name} = {_quote('auto') if auto else _quote(value)}")
    return lines


def _group(group: KVGroup) -> list[str]:
    opened = group.open.id if group.open is not None else ""
    return [
        f"owner = {_quote(group.owner)}",
        f"layers = {_quote(list(group.layers))}",
        f"format = {_quote(group.main.id)}",
        f"open_format = {_quote(opened)}",
        f"page_tokens = {group.page_tokens}",
        f"window = {group.window or 0}",
        f"key_lookahead = {group.key_lookahead}",
        f"residual_tokens = {group.residual_tokens}",
    ]


def check_lock(text: str, composer: Composer, composition: Composition, source: str) -> list[str]:
    """Every difference between a lock and the composition at hand, in words; empty if they agree.

    Raises ProfileError if the text is no lock.
    """
    try:
        locked = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"is not a lock: {error}", subject=source, remedy="Make it with compose --lock") from None
    if locked.get("lock") != _VERSION:
        raise ProfileError(f"has lock version {locked.get('lock')!r}", subject=source, remedy="Make it again")
    current = tomllib.loads(make_lock(composer, composition))
    return _differences(locked, current, "")


def _differences(old: object, new: object, path: str) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted({*old, *new}):
            inner = f"{path}.{key}" if path else key
            if key not in old:
                found.append(f"{inner} is new")
            elif key not in new:
                found.append(f"{inner} is gone")
            else:
                found += _differences(old[key], new[key], inner)
        return found
    return [] if old == new else [f"{path} was {old!r} and is {new!r}"]


def _distribution(name: str) -> tuple[str, str]:
    """Version and a hash over the distribution's recorded files (path, recorded hash), or its modules when editable."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return "0", "local"
    digest = hashlib.sha256()
    for file in sorted(found.files or [], key=str):
        if file.hash is not None:
            digest.update(f"{file}\0{file.hash.value}\0".encode())
    editable = json.loads(found.read_text("direct_url.json") or "{}")
    if editable.get("dir_info", {}).get("editable"):
        _hash_sources(digest, Path(url2pathname(urlparse(editable["url"]).path)))
    return found.version, digest.hexdigest()


def _hash_sources(digest: "hashlib._Hash", root: Path) -> None:
    """An editable install records no module: hash the modules of its project folder instead."""
    found: list[Path] = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not name.startswith(".") and name not in ("build", "dist", "tests")]
        found += [Path(folder) / name for name in files if name.endswith(".py")]
    for path in sorted(found):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())


def _quote(value: str | int | list[int]) -> str:
    """As TOML: JSON's texts, integers and arrays are TOML's, but for DEL and for pairs of surrogates."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
