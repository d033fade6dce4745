"""`python -m scripts.fleet_hardware FILE...`: recorded runs on GPUs beside the simulator.

Each FILE is a .json that `tasuki bench serving --pair` or `--agents` wrote. Prints both and the
errors; needs no GPU, and takes a second a run. Exit status 1 where a file cannot be compared; how
large an error is changes nothing.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.host import describe_host

from .comparison import compare
from .record import read_record
from .table import as_page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.fleet_hardware", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument(
        "--out", type=Path, help="a .json file that gets the rows; a page beside it"
    )
    values = parser.parse_args()
    host = describe_host(torch.device("cpu"), "")
    try:
        records = [read_record(path) for path in values.files]
        records.sort(key=lambda each: (each.pair, each.agents.sessions, each.name))
        rows = [compare(record) for record in records]
    except BenchError as error:
        print(error, file=sys.stderr)
        return 1
    page = as_page(rows, host)
    print(page)
    if values.out is not None:
        document = {"bench": "fleet_hardware", "host": asdict(host), "rows": rows}
        values.out.write_text(json.dumps(document, indent=1) + "\n")
        values.out.with_suffix(".md").write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
