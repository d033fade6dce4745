"""Which torch an environment gets: a CUDA build where a GPU is, a CPU build where none is.

    python3 -m scripts.first_build.torch_choice .venv/bin/pip

Prints the arguments for `pip install torch`: the index of CPU builds, or nothing. On Linux a plain
`pip install torch` brings gigabytes of CUDA libraries, which a machine without a GPU has no use
for. An index that cannot be reached is not insisted on: then pip installs what its own one has.
"""

from __future__ import annotations

import glob
import subprocess
import sys
from collections.abc import Sequence

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ASK_SECONDS = 30.0


def gpu_names(pattern: str = "/dev/nvidia[0-9]*") -> list[str]:
    """NVIDIA's devices of this machine, as its driver names them; WSL has another."""
    return [*glob.glob(pattern), *glob.glob("/dev/dxg")]


def reachable(pip: str, index: str) -> bool:
    """Whether pip, with its own proxies and certificates, finds a torch there."""
    asked = [pip, "index", "versions", "torch", "--index-url", index]
    bounded = ["--timeout", "5", "--retries", "0", "--disable-pip-version-check"]
    try:
        found = subprocess.run(
            [*asked, *bounded],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=ASK_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0


def torch_arguments(gpus: Sequence[str], pip: str, index: str = CPU_INDEX) -> list[str]:
    if gpus or not reachable(pip, index):
        return []
    return ["--index-url", index]


def main(arguments: Sequence[str]) -> int:
    """arguments: the pip that is to install it."""
    gpus = gpu_names()
    chosen = torch_arguments(gpus, arguments[0])
    if gpus:
        said = f"a GPU is here ({gpus[0]}), so torch is a CUDA build"
    elif chosen:
        said = "no GPU is here, so torch is a CPU build"
    else:
        said = f"no GPU is here, and {CPU_INDEX} cannot be reached: torch is what pip's index has"
    sys.stderr.write(f"tasuki: {said}\n")
    sys.stdout.write(" ".join(chosen) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
