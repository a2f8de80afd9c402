"""Models by the name `org/name@revision` from the Hugging Face Hub, through the package huggingface_hub."""

import re
from pathlib import Path
from typing import Final

from attrs import frozen

from tokloom.sdk import CheckpointError

_NAME: Final = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)", re.ASCII)
#: files that a model is read from
_FILES: Final = ("*.json", "*.safetensors", "chat_template.jinja")


@frozen
class Snapshot:
    """A model in the local cache. `commit`: what the revision stood for."""

    name: str
    commit: str
    folder: Path


def is_hub_name(name: str) -> bool:
    """Whether `name` is spelled `org/name@revision`. Without a revision it would look like a path."""
    return _NAME.fullmatch(name) is not None


def fetch(name: str) -> Snapshot:
    """Bring the files of `org/name@revision` into the cache, unless they are there. Raises CheckpointError."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise CheckpointError("is not spelled org/name@revision", subject=name, remedy="Give a folder or a .gguf file")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise CheckpointError(
            "is no path here, and getting models by name needs the package huggingface_hub",
            subject=name,
            remedy="pip install 'tokloom[hub]', or give a folder or a .gguf file",
        ) from None
    repository, revision = matched.groups()
    try:
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=list(_FILES)))
    except Exception as error:  # the package raises errors of its own, of its HTTP client and of the system
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"cannot be had from the hub: {first}",
            subject=name,
            remedy="Check name, revision, access, network; offline (HF_HUB_OFFLINE=1) it must be in the cache already",
        ) from error
    if not (folder / "config.json").is_file():
        raise CheckpointError("has no config.json", subject=name, remedy="Name a repository with safetensors weights")
    return Snapshot(repository, folder.name, folder)
