"""Measured rows as a table and a plot, judged by their targets; measures nothing."""

from dataclasses import dataclass
from html import escape
from math import log2

from tasuki.bench.measure.results import Document, Section, markdown_table

Rows = dict[str, float]
Results = dict[str, Rows | str]
RUST = "sglang-0.5.23"


@dataclass(frozen=True)
class Target:
    """One row's target; None: not required. `limit`: largest value in the row's own unit (smallest,
    if more is better). `ratio`: required speedup over SGLang's Rust core. `lead`: required speedup
    over the fastest peer. `growth`: largest ratio to our own row `of`."""

    row: str
    limit: float | None = None
    ratio: float | None = None
    lead: float | None = None
    growth: float | None = None
    of: str = ""


def _crowds() -> list[Target]:
    """Return the targets for crowds (many prompts below one tree node). Ten thousand times as many
    prompts may cost a few times as much, because paths are deeper and memory is colder."""
    works = [
        f"{hanging} on one node{policy}{work}"
        for hanging in ("tails", "children")
        for policy in ("", ", policy value")
        for work in (": match", ": a request", ", a session each: close one")
    ]
    return [Target(f"100000 {work} p50, us", growth=8, of=f"10 {work} p50, us") for work in works]


TARGETS = (
    *(
        Target(f"match {n}{how}, ns/token", 0.5, 3)
        for n in (65536, 262144, 1048576)
        for how in ("", " chunked")
    ),
    Target("agents with session: match p50, us", 5),
    Target("agents with session: publish p50, us", 20),
    Target("agents with session: turns/s", None, 10),
    Target("agents without session: turns/s", None, 3),
    Target("insert 1048576 in 8192s, us", 5_000),
    Target("121K nodes: insert p50, us", 5),
    Target("121K nodes: match p50, us", 3),
    Target("121K nodes: evict one checkpoint p50, us", 2),
    Target("121K nodes: bulk eviction, leaves/s", 1e6),
    Target("121K nodes: bytes a node beside 4 a token", 400),
    Target("256 tokens, 64 at a time, cold: a request, us", lead=1),
    Target("256 tokens, 64 at a time, repeated: a request, us", lead=1),
    Target(
        "16 pages, 10x below in the host: match + allocate p50, us",
        growth=1.5,
        of="16 pages, no tier: match + allocate p50, us",
    ),
    *_crowds(),
)


def _more_is_better(row: str) -> bool:
    return row.endswith("/s") or row.endswith("rate")


def _times_better(row: str, ours: float, theirs: float) -> float:
    return ours / theirs if _more_is_better(row) else theirs / ours


def _met(row: str, ours: Rows, peers: Results) -> str:
    rust = peers.get(RUST, "")
    target = next((t for t in TARGETS if t.row == row), None)
    if target is None or row not in ours:
        return ""
    verdicts = []
    if target.limit is not None:
        good = ours[row] >= target.limit if _more_is_better(row) else ours[row] <= target.limit
        sign = ">=" if _more_is_better(row) else "<="
        verdicts.append(f"{sign} {target.limit:g}: {'met' if good else 'MISSED'}")
    if target.ratio is not None and isinstance(rust, dict) and row in rust:
        ratio = _times_better(row, ours[row], rust[row])
        verdict = "met" if ratio >= target.ratio else "MISSED"
        verdicts.append(f">= {target.ratio:g}x Rust: {ratio:.1f}x {verdict}")
    if target.growth is not None and target.of in ours:
        growth = ours[row] / ours[target.of]
        verdict = "met" if growth <= target.growth else "MISSED"
        than = target.of.partition(" ")[0] if target.of.startswith("10 ") else "the row without"
        verdicts.append(f"<= {target.growth:g}x of {than}: {growth:.1f}x {verdict}")
    measured = [r[row] for r in peers.values() if isinstance(r, dict) and row in r]
    if target.lead is not None and measured:
        lead = min(_times_better(row, ours[row], each) for each in measured)
        verdict = "met" if lead >= target.lead else "MISSED"
        verdicts.append(f">= {target.lead:g}x the fastest peer: {lead:.2f}x {verdict}")
    return "; ".join(verdicts)


def _cell(rows: Rows | str, row: str) -> str:
    if isinstance(rows, str) or row not in rows:
        return "-"
    value = rows[row]
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:,.2f}"


def describe(run: Document) -> Section:
    """Return a stored run as a page's section."""
    results: Results = run["results"]
    ours = results["tasuki"]
    peers = {name: rows for name, rows in results.items() if name != "tasuki"}
    order: dict[str, None] = {}
    for rows in results.values():
        if isinstance(rows, dict):
            order.update(dict.fromkeys(rows))
    table = [
        [
            row,
            *(_cell(rows, row) for rows in results.values()),
            _met(row, ours, peers) if isinstance(ours, dict) else "",
        ]
        for row in order
    ]
    lines = [
        "Thread CPU time, one run, one machine, one process a backend (`bench/cache/main.py`). A",
        "peer without sessions has the same figure in both `agents` rows. TokenSpeed exposes no",
        "match: its figure is the plan of the prefill.",
        "",
        *markdown_table(("work", *results, "target"), table),
    ]
    for name, rows in results.items():
        if isinstance(rows, str):
            lines += ["", f"{name}: {rows}"]
    return Section("CPU cost of the cache", "\n".join(lines))


def plot(results: Results) -> str:
    """Draw bars of our speedup over SGLang's Rust core, one for each row without rates and p99, on
    a logarithmic scale."""
    ours, rust = results["tasuki"], results.get(RUST, "")
    if not isinstance(ours, dict) or not isinstance(rust, dict):
        return '<svg xmlns="http://www.w3.org/2000/svg"/>\n'
    bars = []
    for row in (r for r in ours if r in rust and not r.endswith("rate") and "p99" not in r):
        if ours[row] <= 0 or rust[row] <= 0:
            continue
        ratio = _times_better(row, ours[row], rust[row])
        bars.append((row, ratio))
    height = 22 * len(bars) + 50
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="860" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<text x="10" y="20" font-size="14">Times better than SGLang\'s Rust core '
        "(log scale; the line is equal)</text>",
        f'<line x1="420" y1="30" x2="420" y2="{height - 10}" stroke="#888"/>',
    ]
    for i, (row, ratio) in enumerate(bars):
        top = 36 + 22 * i
        length = 60 * log2(ratio) * 0.75
        left = min(420.0, 420 + length)
        colour = "#2a7f62" if ratio >= 1 else "#b04a3a"
        lines += [
            f'<text x="410" y="{top + 12}" text-anchor="end">{escape(row)}</text>'
            if ratio >= 1
            else f'<text x="10" y="{top + 12}">{escape(row)}</text>',
            f'<rect x="{left:.0f}" y="{top}" width="{abs(length):.0f}" height="16" '
            f'fill="{colour}"/>',
            f'<text x="{max(420.0, 420 + length) + 6:.0f}" y="{top + 12}">{ratio:.1f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"
