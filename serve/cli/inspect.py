"""`tokloom compose`, `tokloom plugins`, `tokloom profile`: look at profiles and plugins without running a model."""

import json
from pathlib import Path

import click

from tokloom import Catalog
from tokloom.api.profiles import profile_schema, read_profile
from tokloom.serve.cli.options import engine_options
from tokloom.serve.http.config import TABLE, ServeSection

_CLAIMS = {TABLE: ServeSection}


@click.command("compose")
@click.argument("name", required=False, metavar="[PROFILE]")
@engine_options
@click.option("--explain", is_flag=True, help="Print every choice, who constrained it, and the memory budget.")
@click.option("--lock", "print_lock", is_flag=True, help="Print a lock: versions, hashes, options, model digest.")
@click.option(
    "--check-lock", "locked", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Compare with a lock."
)
def compose(
    name: str | None,
    profile: str,
    model: str | None,
    sets: tuple[str, ...],
    explain: bool,
    print_lock: bool,
    locked: Path | None,
) -> int:
    """Compose PROFILE without loading weights; errors point at the line that is wrong."""
    from tokloom.api.inspecting import check_lock, explain_profile, make_lock

    composer, composition = explain_profile(read_profile(name or profile, model=model, sets=sets, claims=_CLAIMS))
    try:
        if print_lock:
            click.echo(make_lock(composer, composition), nl=False)
        if locked is not None:
            differences = check_lock(locked.read_text(encoding="utf-8"), composer, composition, str(locked))
            for difference in differences:
                click.echo(difference, err=True)
            if differences:
                return 2
        if explain:
            click.echo(composer.explanation.render())
        if not (explain or print_lock or locked):
            click.echo(f"{name or profile}: ok")
        return 0
    finally:
        composer.close()


@click.command("plugins")
@click.option("--verbose", "-v", is_flag=True, help="Load each plugin and show its capabilities.")
@click.option("--json", "as_json", is_flag=True)
def plugins(verbose: bool, as_json: bool) -> int:
    """List installed plugins; each is loaded, and a broken one is listed with its error."""
    rows = Catalog().inspect()
    if as_json:
        listed = [
            {
                "kind": row.listed.kind,
                "name": row.listed.name,
                "distribution": row.listed.distribution,
                "version": row.listed.version,
                "contract": row.contract,
                "summary": row.summary,
                "capabilities": row.capabilities,
                "problem": row.problem,
            }
            for row in rows
        ]
        click.echo(json.dumps(listed, indent=1))
        return 0
    for row in rows:
        at = row.listed
        state = f"BROKEN: {row.problem}" if row.problem else row.summary
        click.echo(f"{at.kind:11} {at.name:12} {at.distribution} {at.version}  {state}")
        if verbose and not row.problem:
            click.echo(f"{'':24} contract {row.contract}; {row.capabilities or 'no capabilities'}")
    return 0


@click.group("profile")
def profile() -> None:
    """Show, describe or migrate profiles."""


@profile.command("schema")
def schema() -> None:
    """Print the JSON Schema of profiles, with the options of installed plugins."""
    click.echo(json.dumps(profile_schema(Catalog(), _CLAIMS), indent=1))


@profile.command("show")
@click.argument("name", metavar="PROFILE")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE")
def show(name: str, sets: tuple[str, ...]) -> None:
    """Print every value of PROFILE as merged, and where it comes from."""
    loaded = read_profile(name, sets=sets, claims=_CLAIMS)
    for path, node in loaded.root.walk():
        click.echo(f"{path} = {json.dumps(node.value, default=str)}  [{node.place}]")


@profile.command("migrate")
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def migrate(path: Path) -> None:
    """Rewrite a profile of an older schema. There is one schema so far: a valid profile needs nothing."""
    read_profile(path, claims=_CLAIMS)
    click.echo(f"{path}: schema is current")
