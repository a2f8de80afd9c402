"""For front ends that look at profiles and plugins without running a model."""

from tokloom.api.loading import read_profile
from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer, check_lock, make_lock
from tokloom.core.composition import Composition
from tokloom.core.profile import Profile, profile_schema

__all__ = ["Catalog", "check_lock", "explain_profile", "make_lock", "profile_schema", "read_profile"]


def explain_profile(profile: Profile, catalog: Catalog | None = None) -> tuple[Composer, Composition]:
    """Compose without loading weights; the composer has the explanation."""
    composer = Composer(profile, catalog or Catalog())
    return composer, composer.compose()
