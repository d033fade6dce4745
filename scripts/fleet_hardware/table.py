"""Rows of comparisons as a page: what the hardware gave, what the simulator gives, the error."""

from collections.abc import Sequence

from scripts.common.command import head, row
from tasuki.bench.measure.host import Host

from .comparison import Row

POINTS = 2.0
"""Of the hit rate: a target."""
TTFT_SHARE = 0.2
SHARES = ("p50", "p95", "p99")
_HIT_COLUMNS = (
    *("run", "commit", "hit rate, hardware", "simulated", "points apart"),
    *("answers pulled back", "points of the others", "points left"),
)
_TTFT_COLUMNS = (
    *("run", *(f"{share}, s: hardware / simulated" for share in SHARES), "simulated mean"),
    *("exposed p50 / p95, ms", "prompts a forward"),
)


def as_page(rows: Sequence[Row], host: Host) -> str:
    """host: of the simulation; the records name their own."""
    pairs = [each for each in rows if each["pair"]]
    devices = ", ".join(sorted({each["device"] for each in rows}))
    source = "; ".join(sorted({each["simulated"]["prefill_source"] for each in rows}))
    lines = [
        "# The simulator beside recorded runs on hardware",
        "",
        "By `python -m scripts.fleet_hardware`; what is compared and why it differs: "
        "docs/results/routing.md, "
        '"Validated". Runs of `tasuki bench serving --pair` and `--agents` on '
        f"{devices}, each of the commit named; simulated at commit {host.commit} on {host.date}, "
        f"prefills {source}. An error is the simulation less the hardware; **bold** where it is "
        f"over {POINTS:g} points or {100 * TTFT_SHARE:.0f}%.",
        "",
        *_table(_HIT_COLUMNS, list(map(_hits, rows))),
        "",
        "Points of the others: what answers that were not pulled back to the prefill node take "
        "from the hardware's hit rate, in the mean; the simulator takes all to come back.",
        "",
        *_table(_TTFT_COLUMNS, list(map(_first_tokens, pairs))),
        "",
        "No run recorded a mean TTFT. On one node that answers beside its prefills the simulator "
        "says nothing of it.",
        "",
    ]
    return "\n".join(lines)


def _hits(row: Row) -> list[str]:
    cells = [
        _name(row),
        row["commit"][:8],
        f"{row['hit_rate']:.4f} ({row['cached_tokens']:,})",
        f"{row['simulated']['hit_rate']:.4f} ({row['simulated']['cached_tokens']:,})",
        _marked(f"{row['points_apart']:+.2f}", abs(row["points_apart"]) > POINTS),
    ]
    if not row["pair"]:
        return [*cells, "", "", ""]
    pulled = f"{row['pulls']} of {row['continued_turns']}"
    left = row["points_left"]
    missing = f"{row['points_not_returned']:+.2f}"
    return [*cells, pulled, missing, _marked(f"{left:+.2f}", abs(left) > POINTS)]


def _first_tokens(row: Row) -> list[str]:
    simulated = row["simulated"]
    times = []
    for share in SHARES:
        apart = row["ttft_apart"][share]
        error = _marked(f"{100 * apart:+.0f}%", abs(apart) > TTFT_SHARE)
        times.append(f"{row['ttft'][share]:.3f} / {simulated['ttft'][share]:.3f}: {error}")
    exposed = " / ".join(f"{1e3 * row['exposed'][share]:.1f}" for share in ("p50", "p95"))
    mean = f"{simulated['ttft_mean_seconds']:.3f}"
    return [_name(row), *times, mean, exposed, f"{row['prompts_a_forward']:.1f}"]


def _name(row: Row) -> str:
    run = row["name"].removeprefix("serving_gpu_")
    return f"[{run}](serving_gpu.md#{run})"


def _marked(text: str, is_over: bool) -> str:
    return f"**{text}**" if is_over else text


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [head(*columns), *(row(*cells) for cells in rows)]
