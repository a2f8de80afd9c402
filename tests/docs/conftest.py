"""Makes the helper modules of this folder importable under importlib mode."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
