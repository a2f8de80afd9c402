"""Doubles: ordinary offers that drive the real engine without weights. Importing this needs no torch.

`offers()` has them all; a test gives them to `Catalog(extra=offers())` and names them in a profile.
"""

from tokloom.conformance.doubles.offers import offers

__all__ = ["offers"]
