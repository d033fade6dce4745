"""One kernel at one size: the work, the traffic it cannot avoid, and what it is compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasuki.bench.measure.floors import Floors
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.timing import Work, median_seconds, turn_seconds

from .stage import Stage


@dataclass(frozen=True)
class Case:
    """`turns` do the same work on different memory, enough of it to overflow the L2 cache.

    bytes: read once and written once, a turn. flops: of matrix products, a turn. captured, eager:
    other implementations of the same turn, by name, as graph replays and as plain calls. share: the
    least share of the floor asked for. rate: the least bytes a second asked for. ratios: how many
    times as long the others must take.
    """

    name: str
    turns: Sequence[Work]
    bytes: float
    flops: float = 0.0
    captured: Mapping[str, Sequence[Work]] = field(default_factory=dict)
    eager: Mapping[str, Work] = field(default_factory=dict)
    share: float | None = None
    rate: float | None = None
    ratios: Mapping[str, float] = field(default_factory=dict)

    def floor(self, floors: Floors) -> float:
        return max(floors.of_bytes(self.bytes), floors.of_flops(self.flops))


def measure(case: Case, stage: Stage, floors: Floors) -> Row:
    seconds = turn_seconds(case.turns, stage.device)
    others = {name: turn_seconds(turns, stage.device) for name, turns in case.captured.items()}
    others |= {name: median_seconds(work, stage.device) for name, work in case.eager.items()}
    floor = case.floor(floors)
    targets, met = [], []
    if case.share is not None:
        targets.append(f">= {case.share:.0%} of the floor")
        met.append(floor / seconds >= case.share)
    if case.rate is not None:
        targets.append(f">= {case.rate / 1e12:g} TB/s")
        met.append(case.bytes / seconds >= case.rate)
    for name, ratio in case.ratios.items():
        if name in others:
            targets.append(f">= {ratio:g}x {name}")
            met.append(others[name] / seconds >= ratio)
    extra = {"TB/s": case.bytes / seconds / 1e12}
    if case.flops:
        extra["TFLOP/s"] = case.flops / seconds / 1e12
    return Row(
        case.name,
        seconds,
        floor,
        target=", ".join(targets),
        met=all(met) if met else None,
        others=others,
        extra=extra,
    )
