"""From a profile to a running core."""

from collections.abc import Callable
from pathlib import Path

from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer
from tokloom.core.engine import EngineCore
from tokloom.core.profile import Profile
from tokloom.sdk import ModelSource, RequestError, Tokenizer, TokloomError

Progress = Callable[[int, int, str], None]


def start(profile: Profile, catalog: Catalog | None, progress: Progress | None) -> EngineCore:
    """Compose and load."""
    composition = Composer(profile, catalog or Catalog()).compose()
    return EngineCore(composition, progress=progress) if progress else EngineCore(composition)


def open_tokenizer(model: str | Path, catalog: Catalog | None = None) -> Tokenizer:
    """The tokenizer of a model folder or file, without loading weights. Raises RequestError if it has none."""
    from tokloom.core.context import EngineContext
    from tokloom.core.device import resolve
    from tokloom.sdk import Limits

    installed = catalog or Catalog()
    source = ModelSource(path=Path(model).expanduser())
    limits = Limits(max_batch_tokens=1, max_sequences=1, max_model_tokens=1, max_draft_tokens=0, page_tokens=1)
    context = EngineContext(device=resolve("auto").info, dtype="", limits=limits)
    for row in installed.listed("model"):
        try:
            offer = installed.resolve("model", row.qualified).offer
            family = offer.factory(offer.config(), context)
            if family.claims(source):
                tokenizer: Tokenizer | None = family.open(source).tokenizer
                if tokenizer is not None:
                    return tokenizer
        except TokloomError:
            continue
    raise RequestError("no tokenizer found", subject=str(model), remedy="Give a model folder or file that carries one")
