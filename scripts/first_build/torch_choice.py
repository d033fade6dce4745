"""The choice of an environment's torch: a CUDA build with a GPU, a CPU build without one.

    python3 -m scripts.first_build.torch_choice

Prints the arguments for `pip install torch`: the index of CPU builds, or nothing. On Linux a plain
`pip install torch` brings gigabytes of CUDA libraries, useless on a machine without a GPU. If the
index cannot be reached, pip installs from its own index.
"""

from __future__ import annotations

import glob
import sys
import urllib.request
from collections.abc import Sequence

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ASK_SECONDS = 10.0


def gpu_names(pattern: str = "/dev/nvidia[0-9]*") -> list[str]:
    """Return the device files of NVIDIA GPUs, including the one of WSL."""
    return [*glob.glob(pattern), *glob.glob("/dev/dxg")]


def reachable(index: str) -> bool:
    """Return True if the package index answers. pip cannot be used for this: it would search its
    other indices, and wait for this one at each of torch's dependencies."""
    try:
        with urllib.request.urlopen(f"{index}/torch/", timeout=ASK_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def torch_arguments(gpus: Sequence[str], index: str = CPU_INDEX) -> list[str]:
    if gpus or not reachable(index):
        return []
    return ["--index-url", index]


def main() -> int:
    gpus = gpu_names()
    chosen = torch_arguments(gpus)
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
    sys.exit(main())
