"""`tokloom serve`: a profile as an OpenAI-compatible HTTP server."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click

from tokloom.api.profiles import Profile, read_profile
from tokloom.sdk import CompositionError
from tokloom.serve.cli.options import options_of_engine
from tokloom.serve.http.config import TABLE, ServeSection, is_switch, option_names

F = TypeVar("F", bound=Callable[..., Any])


def serve_options(function: F) -> F:
    """One option per key of `[serve]`; the key by reference."""
    options = [
        click.option("--api-key-env", metavar="NAME", help="Environment variable with the keys clients must send."),
        click.option("--api-key-file", metavar="PATH", help="File with the keys clients must send."),
    ]
    fields = attrs.fields_dict(ServeSection)
    for name, option in option_names().items():
        item = fields[name]
        if is_switch(item):
            pair = f"{option}/--no-{option.removeprefix('--')}"
            options.append(click.option(pair, name, default=None, help=f"{item.metadata['help']}{_default(item)}"))
            continue
        several = isinstance(item.default, tuple)
        options.append(
            click.option(
                option, name, multiple=several, metavar="VALUE", help=f"{item.metadata['help']}{_default(item)}"
            )
        )
    for add in reversed(options):
        function = add(function)
    return function


def _default(item: "attrs.Attribute[Any]") -> str:
    if is_switch(item):
        return f" Default {'on' if item.default else 'off'}."
    return f" Default {item.default}." if item.default not in ("", ()) else ""


@click.command("serve")
@options_of_engine("builtin:serve")
@serve_options
@click.option(
    "--locked",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Start only if the composition is the one of this lock.",
)
def serve(
    profile: str,
    model: str | None,
    sets: tuple[str, ...],
    locked: Path | None,
    api_key_env: str | None,
    api_key_file: str | None,
    **options: Any,
) -> int:
    """Serve a model over HTTP, as OpenAI's API. Options beat the profile's [serve].

    The address is bound first and printed on standard error; /ready says 200 once the model is loaded. SIGTERM or an
    interrupt lets live requests end; a second one ends the process at once.
    """
    try:
        from tokloom.serve.http.lifecycle import run_until_signal
    except ImportError as error:
        raise CompositionError(f"{error}", subject="serve", remedy="pip install 'tokloom[serve]'") from None
    changes = [*sets, *_as_sets(options, api_key_env, api_key_file)]
    loaded = read_profile(profile, model=model, sets=changes, claims={TABLE: ServeSection})
    section: ServeSection = loaded.claims[TABLE]
    names = section.served_model_name or (_model_name(loaded),)
    asyncio.run(run_until_signal(section, names, lambda: _load(loaded, locked), _say))
    return 0


def _as_sets(options: dict[str, Any], key_env: str | None, key_file: str | None) -> list[str]:
    """Options as overrides of the profile, so that they are checked the same way."""
    texts = []
    fields = attrs.fields_dict(ServeSection)
    for name, value in options.items():
        if value in (None, ()):
            continue
        plain = fields[name].type in (int, float)  # a switch is true or false in JSON as in TOML
        texts.append(f"{TABLE}.{name}={value if plain else json.dumps(value, ensure_ascii=False)}")
    for kind, reference in (("env", key_env), ("file", key_file)):
        if reference is not None:
            texts.append(f"{TABLE}.api_key={{ {kind} = {json.dumps(reference)} }}")
    return texts


def _model_name(profile: Profile) -> str:
    """The folder's or the file's name, without what says the format."""
    return Path(profile.model.path).name.removesuffix(".gguf") or "model"


async def _load(profile: Profile, locked: Path | None) -> Any:
    composition = await asyncio.to_thread(_compose, profile, locked)
    import torch

    from tokloom import AsyncEngine

    torch.set_num_threads(composition.settings.threads)
    return await AsyncEngine.from_composition(composition)


def _compose(profile: Profile, locked: Path | None) -> Any:
    from tokloom.api.inspecting import check_lock, explain_profile

    composer, composition = explain_profile(profile)
    try:
        if locked is not None:
            differences = check_lock(locked.read_text(encoding="utf-8"), composer, composition, str(locked))
            if differences:
                raise CompositionError(
                    f"the composition differs: {'; '.join(differences)}",
                    subject=str(locked),
                    remedy="Go back to what was locked, or make the lock again with `tokloom compose --lock`",
                )
    except BaseException:
        composer.close()
        raise
    return composition


def _say(text: str) -> None:
    click.echo(f"tokloom: {text}", err=True)
