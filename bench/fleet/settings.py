"""The settings of a fleet simulation, each a flag of `tasuki simulate`."""

import math
import sys
from dataclasses import dataclass

from tasuki.bench.replay.main import POLICIES
from tasuki.model.families.registry import published_names
from tasuki.utils.options import option

from .workload import ARRIVALS

ROUTES = ("cost", "sticky", "random", "fewest-rooms", "one-cache", "pull")
ASSUMED_TFLOPS = 300.0
"""TFLOP/s assumed for a model without measured prefill times."""
_POSITIVE = (
    *("nodes", "gb", "streams", "deciders", "tflops", "fixed_ms", "itl_ms", "report_seconds"),
    "link_gb",
)
_DURATIONS = ("seconds", "warm_up", "report_delay", "index_seconds")
_SHARES = ("lost", "dead", "lying")


@dataclass(frozen=True)
class FleetSettings:
    """The settings. gb: size of each node's arena, GiB. seconds: end of the simulation; later turns
    are left out. warm_up: seconds before counting begins; earlier turns are not counted. tflops:
    assumed prefill rate, TFLOP/s; None: use the measured times. fixed_ms: constant cost of a
    prefill, with tflops only. itl_ms: milliseconds between an answer's tokens. report_seconds:
    seconds between a node's load reports. report_delay: seconds until a report arrives.
    index_seconds: seconds until a tree's change is in the index. lost: share of a tree's messages
    lost on the way. dead: share of nodes dying halfway; above 0 at least one. lying: share of nodes
    falsely listing every prompt as wholly cached; above 0 at least one. link_gb: rate of a node's
    link, 10^9 bytes a second."""

    model: str = option("35b-a3b", f"{', '.join(published_names())} or a checkpoint folder")
    nodes: int = option(4, "prefill nodes")
    gb: float = option(32.0, "GiB of a node's cache")
    route: str = option("cost", "choice of the node", ROUTES)
    policy: str = option("value", "eviction policy", POLICIES)
    streams: int = option(1, "times the trace is played")
    arrivals: str = option("recorded", "when turns come", ARRIVALS)
    seed: int = option(0, "seed of all random numbers")
    deciders: int = option(2, "number of choosing decode nodes")
    seconds: float = option(1e9, "seconds of the trace; all by default")
    warm_up: float = option(0.0, "warm-up without counting", unit="SECONDS")
    tflops: float | None = option(
        None, f"TFLOP/s of a prefill; default: as measured, else {ASSUMED_TFLOPS:g}"
    )
    fixed_ms: float = option(10.0, "fixed milliseconds of every prefill")
    itl_ms: float = option(20.0, "milliseconds of an answer's token")
    report_seconds: float = option(1.0, "between reports of waits")
    report_delay: float = option(0.0, "seconds until a report has come")
    index_seconds: float = option(0.5, "until a change is in the index")
    lost: float = option(0.0, "share of lost messages of the index")
    dead: float = option(0.0, "share of nodes with a death halfway")
    link_gb: float = option(25.0, "rate of a link, for pulls", unit="GB/S")
    lying: float = option(0.0, "share of nodes with a lie: all prefixes held")

    def check(self) -> None:
        """Raise ValueError for a setting out of bounds; the text names the flag."""
        for names, least, most, rule in (
            (_POSITIVE, math.ulp(0.0), sys.float_info.max, "more than 0 and finite"),
            (_DURATIONS, 0.0, sys.float_info.max, "0 or more seconds, and finite"),
            (_SHARES, 0.0, 1.0, "a share, from 0 to 1"),
        ):
            for name in names:
                value = getattr(self, name)
                if value is not None and not least <= value <= most:
                    raise ValueError(f"--{name.replace('_', '-')} must be {rule}, not {value:g}")
