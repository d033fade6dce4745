"""One run of `tasuki bench serving` with its host, commit and settings: a JSON document, and text
lines."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tasuki.bench.measure.host import Host, describe_host, described
from tasuki.bench.measure.results import Document, RunFile, Section, markdown_table

from .figures import Figures


class ServingReport:
    def __init__(self, case: str, settings: Mapping[str, Any], figures: Figures) -> None:
        """Build the document. case: the run's name. settings: the flags given. figures: measured
        figures by name."""
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

    def write(self, out: str | Path) -> None:
        """Store the run. out: a path in the form of results.OUT."""
        host = self.document["host"]
        name = f"{self.document['case']}, {host['date']}, {host['commit'][:12]}"
        RunFile.of(out, name).keep(self.document, describe)

    def as_lines(self) -> str:
        return "\n".join(f"{name:<44}{value}" for name, value in _rows(self.document))


def describe(document: Document) -> Section:
    """Return a stored run as a page's section."""
    settings = ", ".join(
        f"{name} {value}"
        for name, value in document["settings"].items()
        if value not in ("", False)
    )
    head = (
        f"{described(document['host'])}; in its last minute {document['load_average']} processes "
        f"ran or waited. {settings}."
    )
    table = markdown_table(("figure", "value"), _rows(document))
    return Section(f"serving: {document['case']}", "\n".join([head, "", *table]))


def _rows(document: Document) -> Iterator[tuple[str, str]]:
    for name, value in document.items():
        if name not in ("run", "bench", "case", "settings", "host", "load_average"):
            yield from _flat(name, value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield a table row for each figure. Quantiles and other small tables share one row. name:
    prefix of the figures' names."""
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
