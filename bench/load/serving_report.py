"""One run of `tasuki bench serving` with its host, commit and settings: JSON, and lines to read."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.measure.host import Host, describe_host

from .figures import Figures


class ServingReport:
    def __init__(self, case: str, settings: Mapping[str, Any], figures: Figures) -> None:
        """settings: what was asked for."""
        on_gpu = not settings.get("free_model") and torch.cuda.is_available()
        device = torch.device("cuda" if on_gpu else "cpu")
        host: Host = describe_host(device, str(settings.get("commit", "")))
        self.document = {
            "bench": "serving",
            "case": case,
            **figures,
            "settings": dict(settings),
            "host": asdict(host),
            "load_average": round(os.getloadavg()[0], 1),
        }

    def write(self, path: Path) -> None:
        """JSON, and the same as a table beside it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.document, indent=1) + "\n")
        path.with_suffix(".md").write_text(self.as_table())

    def as_table(self) -> str:
        document = self.document
        host = document["host"]
        versions = ", ".join(f"{name} {version}" for name, version in host["versions"].items())
        settings = ", ".join(
            f"{name} {value}"
            for name, value in document["settings"].items()
            if value not in ("", False)
        )
        head = [
            f"# serving: {document['case']}",
            "",
            f"{host['device']}, {host['cores']} cores, {host['date']}, commit {host['commit']}; "
            f"{versions}; in its last minute {document['load_average']} processes ran or waited. "
            f"{settings}.",
            "",
            "| figure | value |",
            "| --- | --- |",
        ]
        rows = [f"| {name} | {value} |" for name, value in self._rows()]
        return "\n".join([*head, *rows, ""])

    def as_lines(self) -> str:
        return "\n".join(f"{name:<44}{value}" for name, value in self._rows())

    def _rows(self) -> Iterator[tuple[str, str]]:
        for name, value in self.document.items():
            if name not in ("bench", "case", "settings", "host", "load_average"):
                yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A row for each figure; quantiles and other small tables have one together."""
    if not isinstance(value, Mapping):
        yield name, _text(value)
    elif any(isinstance(item, Mapping) for item in value.values()):
        for key, item in value.items():
            yield from _flat(f"{name}: {key}", item)
    else:
        yield name, ", ".join(f"{key} {_text(item)}" for key, item in value.items())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return "none" if value is None else str(value)
