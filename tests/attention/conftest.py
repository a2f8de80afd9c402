"""Makes the helper modules of this folder and of the codec tests importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent / "codec")]
