"""The peers' virtual environments under build/peers/: made once, never mixed with the project's."""

import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"


@dataclass(frozen=True)
class Peer:
    """`packages` go into its environment; of `wheel` only the members under `members` are kept."""

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
    """The message is the installer's last line."""


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise CannotInstall(lines[-1])


def command(peer: Peer, folder: Path) -> list[str]:
    """How to run its script, after making what is missing. Raises CannotInstall."""
    home = folder / peer.name
    python = home / "bin" / "python"
    ready = home / "ready"
    source = home / "source"
    if not ready.exists():
        _run(sys.executable, "-m", "venv", str(home))
        # The project's versions of numpy and torch, so that all bindings convert alike.
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
