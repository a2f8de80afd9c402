"""Install a CPU build of torch into this environment, unless it has a torch. Never brings CUDA libraries.

Usage: python tools/install_torch.py VERSION. Indexes and proxies are pip's own, from its configuration and variables.
"""

import importlib.util
import json
import subprocess
import sys

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def brings_cuda(requirement: str) -> bool:
    """Whether pip would install CUDA libraries along. Raises CalledProcessError where it finds no such torch."""
    plan = subprocess.run([*PIP, "--dry-run", "--report", "-", requirement], check=True, stdout=subprocess.PIPE)
    names = [item["metadata"]["name"].lower() for item in json.loads(plan.stdout)["install"]]
    return any(name.startswith(("nvidia-", "cuda-", "triton")) for name in names)


def main() -> int:
    version = sys.argv[1]
    if importlib.util.find_spec("torch") is not None:
        return 0
    print(f"installing torch {version} for CPU", flush=True)
    cpu_build = subprocess.run([*PIP, f"torch=={version}+cpu"], stderr=subprocess.DEVNULL)
    if cpu_build.returncode == 0:
        return 0
    try:
        cuda = brings_cuda(f"torch=={version}")
    except subprocess.CalledProcessError:
        sys.exit(f"pip finds no torch {version}: see what `{sys.executable} -m pip install torch=={version}` says")
    if cuda:
        sys.exit(
            f"pip finds torch {version} only with CUDA libraries, which take gigabytes. Name an index of CPU builds in "
            f"the variable PIP_EXTRA_INDEX_URL, or install the torch you want with {sys.executable} -m pip first"
        )
    return subprocess.run([*PIP, f"torch=={version}"]).returncode


if __name__ == "__main__":
    sys.exit(main())
