"""The faults of a prefill and a decode node and of the network between them, and their times,
derived from a seed.

Pure. Invariant: equal seeds give equal disturbances; only their coincidence with requests differs
from run to run.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tasuki.utils.options import option

VOCABULARY = 2000


class Fault(Enum):
    KILL_PREFILL = "kill-prefill"
    KILL_DECODE = "kill-decode"
    FREEZE_PREFILL = "freeze-prefill"
    FREEZE_DECODE = "freeze-decode"
    STOP_PREFILL = "stop-prefill"
    """Fault: SIGTERM to the prefill node, with its drain."""
    STOP_DECODE = "stop-decode"
    CUT = "cut"
    """Fault: the connections between the nodes are reset; new ones can be made."""
    HALF_OPEN = "half-open"
    """Fault: the connections carry nothing, without notifying either side."""
    DELAY = "delay"
    THROTTLE = "throttle"
    STORM = "storm"
    """Fault: hundreds of clients send a request and disconnect immediately."""

    @property
    def is_of_link(self) -> bool:
        return self in (Fault.CUT, Fault.HALF_OPEN, Fault.DELAY, Fault.THROTTLE)


class UnknownFault(ValueError):
    """A fault's name is unknown to this workload; the message lists the workload's faults."""


def fault_option() -> Any:
    return option("", "names of faults, or beginnings of them, by commas; all of the workload")


def chosen(names: str, known: Sequence[Fault]) -> tuple[Fault, ...]:
    """Return the known faults with a name starting with one of `names`. Returns all known faults if
    `names` is empty. Raises UnknownFault."""
    beginnings = tuple(names.split(",")) if names else ("",)
    for beginning in beginnings:
        if not any(fault.value.startswith(beginning) for fault in known):
            values = ", ".join(fault.value for fault in known)
            raise UnknownFault(f"fault: {beginning!r} is none of {values}")
    return tuple(fault for fault in known if fault.value.startswith(beginnings))


@dataclass(frozen=True)
class Disturbance:
    """One fault and its times. after: seconds before it. lasts: seconds until it is undone."""

    fault: Fault
    after: float
    lasts: float


def disturbances(
    rng: random.Random,
    shares: Mapping[Fault, int],
    after: tuple[float, float],
    lasts: Sequence[float],
) -> Iterator[Disturbance]:
    """Yield random disturbances without end. shares: relative frequency of each fault. after:
    shortest and longest time before a fault, seconds. lasts: possible durations, seconds."""
    while True:
        (fault,) = rng.choices(list(shares), list(shares.values()))
        yield Disturbance(fault, rng.uniform(*after), rng.choice(lasts))


def tokens(rng: random.Random, length: int) -> tuple[int, ...]:
    return tuple(rng.randrange(256, VOCABULARY) for _ in range(length))
