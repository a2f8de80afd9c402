"""Test modules of this folder may use each other's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
