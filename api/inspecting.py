"""For front ends that compose profiles without running a model."""

from tokloom.core.catalog import Catalog
from tokloom.core.compose import Composer, check_lock, make_lock
from tokloom.core.composition import Composition
from tokloom.core.profile import Profile

__all__ = ["check_lock", "explain_profile", "make_lock"]


def explain_profile(profile: Profile, catalog: Catalog | None = None) -> tuple[Composer, Composition]:
    """Compose without loading weights; the composer has the explanation. Close the composer, or an engine that was made
    of the composition.
    """
    composer = Composer(profile, catalog or Catalog())
    return composer, composer.compose()
