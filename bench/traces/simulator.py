"""An independent simulator of the same trace, run as a program of its own.

Uses its command line and JSON; shares no code with the tree.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

# Evicts the state whose last use is longest ago, of ends of answers and branch points.
POLICY = "c.marconi-a0"


def simulated(program: Path, trace: Path, model: str, gib: float) -> tuple[float, float]:
    """Shares of prompt tokens and of prefill FLOPs served. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        command = [sys.executable, str(program), str(trace), "--model", model, "--gb", f"{gib:g}"]
        command += ["--policies", POLICY, "--json", str(found)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        for _, policy, tokens, flops, _ in json.loads(found.read_text())["rows"]:
            if policy == POLICY:
                return tokens, flops
    raise LookupError(f"{program} printed no row {POLICY}: it is another simulator")
