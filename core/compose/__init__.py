"""Composition: from a profile to bound, negotiated plugins; explanations and locks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokloom.core.catalog import Catalog
from tokloom.core.compose.composer import Composer
from tokloom.core.compose.explain import Explanation
from tokloom.core.compose.lock import check_lock, make_lock
from tokloom.core.composition import Composition
from tokloom.core.profile import Profile, load_profile

__all__ = ["Composer", "Explanation", "check_lock", "compose", "make_lock"]


def compose(
    profile: Profile | str | Path | Mapping[str, Any], catalog: Catalog | None = None, *, sets: Sequence[str] = ()
) -> Composition:
    """Resolve, build and negotiate everything a profile names. No weights are read."""
    loaded = profile if isinstance(profile, Profile) else load_profile(profile, sets=sets)
    return Composer(loaded, catalog or Catalog()).compose()
