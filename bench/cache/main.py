"""A comparison of tasuki's prefix cache with the caches of other projects (peers): a stored run, a
page and a plot.

Usage: main.py [--quick] [--output FOLDER]. Each cache runs in its own process, one after the other.
Peers have virtual environments under build/peers/, made once and never mixed with the project's.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from report import describe, plot

from tasuki.bench.measure.host import describe_host
from tasuki.bench.measure.results import RunFile

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """One other project's cache. `packages` are installed into its environment. Files of the
    package `wheel` are kept only if their paths begin with `members`."""

    name: str
    script: str
    packages: tuple[str, ...]
    wheel: str | None = None
    members: str = ""


PEERS = (
    Peer(
        "sglang-0.5.23",
        "sglang_rust.py",
        ("numpy", "torch"),
        wheel="sglang==0.5.23",
        members="sglang/srt/mem_cache/rust_tree_core/",
    ),
    Peer("tokenspeed-0.1.0", "tokenspeed.py", ("numpy", "tokenspeed-scheduler==0.1.0")),
    Peer("tokenspeed-0.1.42", "tokenspeed.py", ("numpy", "tokenspeed-scheduler==0.1.42")),
)


class CannotInstall(Exception):
    """A peer's package cannot be installed; the message is the installer's last line."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise CannotInstall(lines[-1])


def command(peer: Peer, folder: Path) -> list[str]:
    """Return the command line running a peer's script, after installing missing packages. Raises
    CannotInstall."""
    home = folder / peer.name
    python = home / "bin" / "python"
    ready = home / "ready"
    source = home / "source"
    if not ready.exists():
        _run(sys.executable, "-m", "venv", str(home))
        # The project's versions of numpy and torch, so all bindings convert alike.
        _run(str(python), "-m", "pip", "install", "-q", "-c", str(CONSTRAINTS), *peer.packages)
        if peer.wheel is not None:
            fetched = home / "wheel"
            _run(str(python), "-m", "pip", "download", "-q", "--no-deps", "-d", str(fetched),
                 peer.wheel)  # fmt: skip
            [archive] = fetched.glob("*.whl")
            with zipfile.ZipFile(archive) as wheel:
                wanted = [n for n in wheel.namelist() if n.startswith(peer.members)]
                wheel.extractall(source, wanted)
        ready.touch()
    script = str(Path(__file__).with_name(peer.script))
    return [str(python), script, *([str(source)] if peer.wheel else [])]


def measure(arguments: list[str]) -> dict[str, float] | str:
    """Run a peer's script. Returns its measured rows, or the reason of having none."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, env=alone)
    if done.returncode != 0:
        return f"{Path(arguments[1]).name} ended with {done.returncode}"
    rows: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sessions and nodes")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    options = parser.parse_args()
    extra = ["--quick"] if options.quick else []
    ours = str(Path(__file__).with_name("ours.py"))
    results = {"tasuki": measure([sys.executable, ours, *extra])}
    for peer in PEERS:
        try:
            arguments = command(peer, ROOT / "build" / "peers")
        except CannotInstall as reason:
            results[peer.name] = f"not installed: {reason}"
            continue
        results[peer.name] = measure([*arguments, *extra])
    host = describe_host(torch.device("cpu"), "")
    run = {
        "bench": "cache",
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "clock": "thread CPU time",
        "results": results,
        "host": asdict(host),
    }
    out = RunFile.of(options.output / "cache.jsonl", f"{host.date}, {host.commit}")
    out.keep(run, describe)
    out.path.with_suffix(".svg").write_text(plot(results))
    print(describe(run).body)


if __name__ == "__main__":
    main()
