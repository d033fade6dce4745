"""`python -m tools.goldens`: writes golden models (checkpoints of random weights) with
transformers' answers to prompts.

Writes tests/golden_models; `--check` compares instead and changes nothing. Runs in a separate
environment, with transformers beside our versions of torch and numpy. Exit status 1 if the files
differ.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

# Set before torch is imported: every processor must take the same path through the same sums.
os.environ |= {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}

from tools.goldens.files import differing, write_model
from tools.goldens.shapes import SHAPES
from tools.goldens.stretched import write_stretched

FOLDER = Path(__file__).parent.parent.parent / "tests" / "golden_models"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.goldens", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is there")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) if check else FOLDER
        for shape in SHAPES:
            size = write_model(shape, folder / shape.name)
            if shape.stretched:
                size += write_stretched(shape, folder / shape.name)
            print(f"goldens: {shape.name}: {size / 1024:.0f} KiB", flush=True)
        changed = differing(folder, FOLDER)
    for name in changed:
        print(f"goldens: {name} differs from what {FOLDER} holds")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
