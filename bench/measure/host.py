"""The machine and the versions of a bench, needed to compare figures of different runs."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from platform import processor, python_version
from typing import Any

import torch

_PACKAGES = ("torch", "triton", "fla-core", "transformers", "flashinfer-python")


@dataclass(frozen=True)
class Host:
    """A measuring machine. device: the GPU's or CPU's name. cores: number of the CPU's cores.
    commit: commit of the source tree, "unknown" outside one."""

    device: str
    cores: int
    commit: str
    date: str
    versions: dict[str, str]


def describe_host(device: torch.device, commit: str) -> Host:
    """Describe this host. commit: commit of a source tree copied without history; empty: ask
    git."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor() or "cpu"
    versions = {"python": python_version(), "cuda": torch.version.cuda or "none"}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return Host(
        name,
        os.cpu_count() or 1,
        commit or _git_commit(),
        datetime.now(UTC).date().isoformat(),
        versions,
    )


def described(host: Mapping[str, Any]) -> str:
    """Return text with a stored run's machine, date, commit and versions, for its page. Early runs
    name no cores."""
    cores = f"{host['cores']} cores, " if "cores" in host else ""
    versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
    return f"{host['device']}, {cores}{host['date']}, commit {host['commit']}; {versions}"


def _git_commit() -> str:
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
