"""`python -m scripts.clients.install CLIENT ...`: each foreign client into an environment of its
own, since their dependencies contradict tasuki's and each other's.

A client is pinned, so that a run can be repeated.
"""

import argparse
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build" / "clients"
_TORCH = "torch==2.13.0"
"""Named with those that want it, or an index may choose a build with CUDA."""

PACKAGES = {
    "trie": ("tokenspeed-trie==0.1.1.post20260523",),
    "aiperf": ("aiperf==0.13.0",),
    "evalscope": (_TORCH, "evalscope[perf]==1.14.1"),
    "guidellm": (_TORCH, "guidellm==0.8.1"),
    "locust": ("locust==2.47.0",),
    "ray": ("ray==2.60.0",),
    "docs": ("mkdocs-material==9.8.1",),
    "goldens": ("transformers==5.17.0",),
}


BESIDE = frozenset({"docs", "goldens", "ray"})
"""Those that run our own package: they see it and all it needs, and are held to our versions."""


def interpreter(client: str) -> Path | None:
    """The Python that has it; None where it is not installed."""
    folder = FOLDER / client
    return folder / "bin" / "python" if (folder / "installed").exists() else None


def program(client: str, name: str) -> Path:
    """A command that the client's packages bring. REQUIRES: it is installed."""
    return FOLDER / client / "bin" / name


def install(client: str) -> Path:
    """The Python that has it. Raises CalledProcessError with pip's own words on stderr."""
    found = interpreter(client)
    if found is not None:
        return found
    folder = FOLDER / client
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "pip"), "install", "-q", "--progress-bar", "off"]
    if client in BESIDE:
        pip += ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *PACKAGES[client]], check=True)
    if client in BESIDE:
        (packages,) = folder.glob("lib/python*/site-packages")
        ours = sysconfig.get_path("purelib")
        (packages / "beside.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    (folder / "installed").touch()
    return folder / "bin" / "python"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="+", choices=sorted(PACKAGES))
    for client in parser.parse_args().clients:
        print(f"clients: {client} is in {install(client).parent.parent}", flush=True)


if __name__ == "__main__":
    main()
