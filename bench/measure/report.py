"""Rows of measured time beside their hardware floor: text lines at once, JSON and a table stored in
a file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from .floors import Floors, measure_floors
from .host import Host, describe_host, described
from .results import Document, RunFile, Section, markdown_table

_COLUMNS = ("work", "measured", "floor", "share", "others", "more", "target")
_VERDICTS = {True: "met", False: "MISSED", None: "not judged"}


@dataclass(frozen=True)
class Row:
    """One measured figure.

    floor: least seconds by the hardware; None if no byte or FLOP count bounds the figure. target:
    text of the target. met: True if the target was reached. others: seconds of other
    implementations of the same work, by name. extra: further columns by name.
    """

    name: str
    seconds: float
    floor: float | None = None
    target: str = ""
    met: bool | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float | None:
        """Return the floor over the measured time: 1 is as fast as the hardware allows. None
        without a floor, and for work overlapped by other work."""
        return self.floor / self.seconds if self.floor and self.seconds else None

    def asked(self, *bounds: tuple[str, bool]) -> "Row":
        """Return the row with targets. bounds: each a text and a verdict; without any the row is
        not judged."""
        met = all(met for _, met in bounds) if bounds else None
        return replace(self, target=", ".join(text for text, _ in bounds), met=met)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"share": self.share}


@dataclass
class Report:
    """The output of one `tasuki bench`, printed and written to the given file. Each row is written
    as soon as it is measured, because a long run may be cut short."""

    bench: str
    host: Host
    floors: Floors
    out: RunFile | None = None
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note below the rows: a result other than a time."""
        self.notes.append(text)
        self._show(text)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._show(as_line(row))

    def _show(self, line: str) -> None:
        print(line, flush=True)
        if self.out is not None:
            self.out.keep(self.document(), describe)

    def head(self) -> str:
        floors = self.floors
        return (
            f"{self.bench} on {self.host.device}, commit {self.host.commit}: copy "
            f"{floors.copy_bandwidth / 1e12:.3f} TB/s, matmul {floors.matmul_rate / 1e12:.1f} "
            f"TFLOP/s in this run\n{'':58}{'measured':>10}{'floor':>10}{'share':>7}"
        )

    def document(self) -> Document:
        return {
            "bench": self.bench,
            "host": asdict(self.host),
            "floors": asdict(self.floors),
            "rows": [row.as_json() for row in self.rows],
            "notes": self.notes,
        }


def describe(document: Document) -> Section:
    """Return a stored report as a page's section."""
    rows = [
        Row(**{name: value for name, value in row.items() if name != "share"})
        for row in document["rows"]
    ]
    floors = Floors(**document["floors"])
    head = (
        f"{described(document['host'])}. In this run a copy "
        f"moved {floors.copy_bandwidth / 1e12:.2f} TB/s and a matrix product did "
        f"{floors.matmul_rate / 1e12:.0f} TFLOP/s; the floor of a row is its bytes or FLOPs over "
        "these."
    )
    table = markdown_table(_COLUMNS, map(_cells, rows))
    notes = [line for note in document["notes"] for line in ("", note)]
    return Section(document["bench"], "\n".join([head, "", *table, *notes]))


def reported(bench: str, device: torch.device, dtype: torch.dtype, commit: str, out: str) -> Report:
    """Return a new report with this host and its floors, and print its head. out: a path in the
    form of results.OUT, or empty."""
    host, floors = describe_host(device, commit), measure_floors(device, dtype)
    name = f"{bench}, {host.date}, {host.commit[:12]}"
    report = Report(bench, host, floors, RunFile.of(out, name) if out else None)
    print(report.head(), flush=True)
    return report


def _cells(row: Row) -> list[str]:
    others = [f"{name} {duration(value)}" for name, value in row.others.items()]
    return [
        row.name,
        duration(row.seconds),
        "" if row.floor is None else duration(row.floor),
        "" if row.share is None else f"{row.share:.0%}",
        "; ".join(others),
        "; ".join(f"{name} {value:.4g}" for name, value in row.extra.items()),
        f"{row.target}: {_VERDICTS[row.met]}" if row.target else "",
    ]


def as_line(row: Row) -> str:
    floor = "" if row.floor is None else duration(row.floor)
    share = "" if row.share is None else f"{row.share:.0%}"
    parts = [f"{row.name:<58}{duration(row.seconds):>10}{floor:>10}{share:>7}"]
    parts += [f"{name} {seconds / row.seconds:.2f}x" for name, seconds in row.others.items()]
    parts += [f"{name} {value:.4g}" for name, value in row.extra.items()]
    if row.target:
        parts.append(f"{row.target}: {_VERDICTS[row.met]}")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.3f} s"
