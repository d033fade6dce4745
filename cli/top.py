"""`tasuki top`: a node's hits, arena and faults, live in the terminal.

Draws the node's overview stream once a second. Every value comes from the page's own data.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.cli.recording.dashboard_stream import HttpTarget
from tasuki.dashboard.memory_use import MemoryUse
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

_BAR = 40
_STALE_SECONDS = 5.0
_CLEAR = "\x1b[H\x1b[J"
_SHADES = " .:-=+*#%@"


@dataclass(frozen=True)
class TopConfig(HttpTarget):
    seconds: int = option(300, "how far back the bars reach")
    screens: int = option(0, "end after so many; 0: go on until interrupted")

    def __post_init__(self) -> None:
        if self.screens < 0:
            raise ValueError(f"screens must be 0 or more, not {self.screens}")


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki top", "A node, live.", argv, TopConfig)
    path = f"/debug/stream?seconds={config.seconds}&points={_BAR}"
    for number, overview in enumerate(config.values(path), start=1):
        clear = _CLEAR if sys.stdout.isatty() else ""
        sys.stdout.write(clear + "\n".join(screen(overview)) + "\n")
        sys.stdout.flush()
        if number == config.screens:
            break
    return 0


def screen(overview: Mapping[str, Any]) -> list[str]:
    """Return one screen about the node, in lines. overview: data of the node's dashboard page."""
    about, totals = overview["about"], overview["totals"]
    prompt = totals.get("prompt", 0)
    return [
        *_figures(f"{about['node']} ({about['role']})", overview),
        "",
        f"  since the start: {overview['ended']} ended, {overview['sessions']} sessions",
        *_waterfall(totals, prompt),
        *_what_if(overview["what_if"]),
        *_drafts(overview.get("drafts", {})),
        f"  {'recent':<20}{_sparkline(overview['hits']['columns']['prompt'])}  prompt tokens",
        f"  {'':<20}{_sparkline(overview['hits']['columns']['usable'])}  usable",
        "",
        *(_pools(overview["pools"]) if overview["pools"] else []),
        "",
        "  faults  " + (", ".join(f"{k} {n}" for k, n in overview["faults"].items()) or "none"),
    ]


def _figures(name: str, overview: Mapping[str, Any]) -> list[str]:
    """Return the lines with the node's health and its figures of the last minute."""
    figures = overview["figures"]
    health = figures["health"]
    why = "; ".join(trouble["text"] for trouble in health["reasons"])
    rate = figures["output_rate"]
    queue = "-" if figures["waiting"] is None else _queue(overview["at"], figures)
    hit, memory = figures["hit"], figures["memory"]
    return [
        f"{name}: {health['word']}" + (f" ({why})" if why else ""),
        f"  output {'-' if rate is None else f'{rate:.1f}'} tokens/s, "
        f"first token {_spread(figures['ttft'])}, each after {_spread(figures['itl'])}, {queue}",
        f"  hit rate {'-' if hit is None else _hit(hit)}"
        + ("" if memory is None else f", {MemoryUse.from_json(memory).words()}"),
    ]


def _queue(now: float, figures: Mapping[str, Any]) -> str:
    """Return the text with the waiting and running requests. It adds the counters' age if they are
    old, because a long engine step delays them."""
    age = now - figures["sampled_at"]
    line = f"{figures['waiting']} waiting, {figures['running']} running"
    return line if age < _STALE_SECONDS else f"{line} ({age:.0f} s ago)"


def _hit(hit: Mapping[str, Any]) -> str:
    """Return the hit rate as text, with the two most expensive miss reasons."""
    lost = sorted(hit["lost"].items(), key=lambda item: -item[1])[:2]
    causes = ", ".join(f"{cause} {_share(tokens, hit['prompt'])}" for cause, tokens in lost)
    return _share(hit["usable"], hit["prompt"]) + (f" ({causes})" if causes else "")


def _spread(value: Mapping[str, float] | None) -> str:
    if value is None:
        return "-"
    return f"{_seconds(value['p50'])} (p95 {_seconds(value['p95'])})"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.0f} ms"


def _waterfall(totals: Mapping[str, int], prompt: int) -> list[str]:
    lost = sorted(
        ((name.removeprefix("lost."), n) for name, n in totals.items() if "lost." in name),
        key=lambda item: -item[1],
    )
    rows = [("prompt", prompt), ("usable", totals.get("usable", 0)), *lost]
    return [
        f"  {name:<20}{tokens:>12}  {_share(tokens, prompt):>6}  {_bar(tokens, prompt)}".rstrip()
        for name, tokens in rows
    ]


def _what_if(answer: Mapping[str, Any]) -> list[str]:
    if not answer["slots"]:
        return []
    return [f"  +{answer['slots']} slots would recover {answer['points']:.1f} points"]


def _drafts(totals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line on the drafted tokens of answers, by source of the drafts. An older recording
    may have none."""
    lines = []
    for source, of in totals.items():
        drafted, share = of["drafted"], _share(of["accepted"], of["drafted"])
        fewer = ", ".join(f"{tokens:.2f}" for tokens in of["tokens_a_step"])
        lines += [
            f"  {f'drafts: {source}':<20}{drafted:>12}  {share:>6}  held",
            f"  {'':<20}tokens a step with at most 1, 2 ... drafts: {fewer}",
        ]
    return lines


def _pools(pools: Mapping[str, Any]) -> list[str]:
    owners = list(pools["slots"])
    head = "  " + f"{'':<8}" + "".join(f"{owner:>13}" for owner in owners)
    rows = [
        f"  {pool:<8}" + "".join(f"{pools[pool][owner]:>13}" for owner in owners)
        for pool in ("slots", "pages")
    ]
    tree = pools["tree"]
    return [
        head,
        *rows,
        f"  {tree['nodes']} nodes, {tree['checkpoints']} checkpoints, policy {pools['policy']}, "
        f"integrity {pools['integrity']}",
    ]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def _bar(part: int, whole: int) -> str:
    return "#" * round(_BAR * part / whole) if whole else ""


def _sparkline(values: Sequence[int]) -> str:
    most = max(values, default=0) or 1
    return "".join(_SHADES[round((len(_SHADES) - 1) * value / most)] for value in values)
