"""`python -m scripts.compile_kernels`: compiles every Triton kernel for Hopper and Blackwell.

Without flags it writes docs/results/kernel_resources.json; `--check` compares with this file
instead, and fails on growth. Needs no GPU.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

if os.environ.get("TRITON_INTERPRET", "0") != "0":
    sys.exit("compile_kernels: TRITON_INTERPRET is set, so nothing would be compiled: unset it")

import triton

from .resources import Table, compile_spec, find_specs, growth

RECORD = Path(__file__).parents[2] / "docs" / "results" / "kernel_resources.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="compile_kernels", description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--record", type=Path, default=RECORD, help="the numbers' file")
    values = parser.parse_args()

    measured = {
        spec.name: {f"sm_{sm}": asdict(compile_spec(spec, sm)) for sm in spec.capabilities}
        for spec in find_specs()
    }
    if not values.check:
        values.record.write_text(as_json(measured))
        print(f"compile_kernels: {len(measured)} kernels -> {values.record}")
        return 0

    record = json.loads(values.record.read_text())
    if record["triton"] != triton.__version__:
        sys.exit(
            f"compile_kernels: recorded with triton {record['triton']}, here is "
            f"{triton.__version__}: install that one, or record anew and review the change"
        )
    faults = growth(record["kernels"], measured)
    for fault in faults:
        print(f"compile_kernels: {fault}")
    if faults:
        print("compile_kernels: without --check it records the numbers; say why they grew")
        return 1
    print(f"compile_kernels: {len(measured)} kernels within the recorded numbers")
    return 0


def as_json(measured: Table) -> str:
    """Return JSON with one line for each kernel and architecture, so a change is one line of a
    diff."""
    rows = [
        f'  "{name}": {{\n'
        + ",\n".join(f'   "{sm}": {json.dumps(resources)}' for sm, resources in by_arch.items())
        + "\n  }"
        for name, by_arch in measured.items()
    ]
    kernels = ",\n".join(rows)
    return f'{{\n "triton": "{triton.__version__}",\n "kernels": {{\n{kernels}\n }}\n}}\n'


if __name__ == "__main__":
    sys.exit(main())
