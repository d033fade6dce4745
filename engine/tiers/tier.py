"""One tier below the arena: its copier, its counters, and the price of a load from it.

A price is in tokens of prefill, as the tree weighs it. The rates are assumed: a load is far cheaper
than the prefill of all but a few hundred tokens. So a decision moves little with them, and measured
rates would change decisions from run to run. Prices are pure. Thread rule: counters and copiers
belong to the engine loop.
"""

from dataclasses import dataclass, field
from typing import Protocol

from tasuki.engine.tiers.disk.disk_memory import DiskMemory
from tasuki.engine.tiers.remote.remote_memory import RemoteMemory
from tasuki.pycache._cpp_cache import TierConfig
from tasuki.pycache.layout import CacheLayout

from .copy_job import CopyJob, JobEnd
from .digests import TierDigests


@dataclass(frozen=True)
class Link:
    """Between the arena and a tier: seconds, bytes a second, FLOPs of prefill a second, and
    the least seconds of a token's prefill, whatever its FLOPs."""

    fixed_seconds: float
    bytes_a_second: float
    flops_a_second: float
    least_seconds: float


CPU_LINK = Link(0.5e-3, 3e9, 50e9, 10e-6)
"""Both are the host's memory, and each byte is read once more for its digest."""
DISK_LINK = Link(5e-3, 1e9, 50e9, 10e-6)
"""A drive, and whatever else is on it."""
REMOTE_LINK = Link(50e-3, 0.2e9, 50e9, 10e-6)
"""A store on a network of a few gigabits, with several requests a load."""
GPU_LINK = Link(0.5e-3, 50e9, 400e12, 1e-6)
"""PCIe of the fifth generation."""
GPU_DISK_LINK = Link(5e-3, 3e9, 400e12, 1e-6)
"""About half of what one NVMe drive reads."""
GPU_REMOTE_LINK = Link(50e-3, 2e9, 400e12, 1e-6)
"""A store on a network of 25 gigabits: with less the larger models compute sooner."""


@dataclass(frozen=True)
class TierPrices:
    """Tokens of prefill: for a load, and more for each page and its state."""

    fixed: float
    page: float
    slot: float
    seconds: float
    """Of a token's prefill."""

    @staticmethod
    def of(layout: CacheLayout, token_flops: float, link: Link) -> "TierPrices":
        """token_flops: of a token's prefill, without what it takes for the tokens before it."""
        seconds = max(token_flops / link.flops_a_second, link.least_seconds)
        a_byte = 1 / link.bytes_a_second / seconds
        return TierPrices(
            link.fixed_seconds / seconds,
            layout.page_bytes * a_byte,
            layout.slot_bytes * a_byte,
            seconds,
        )

    def load(self, pages: int) -> float:
        """Of so many pages and a state."""
        return self.fixed + self.page * pages + self.slot

    def config(
        self, slabs: int, pages_a_second: float | None = None, filling: str = "as_dropped"
    ) -> TierConfig:
        """pages_a_second: that may be written in the long run. filling: as the tree's."""
        return TierConfig(
            slabs=slabs,
            fixed_cost=self.fixed,
            page_cost=self.page,
            slot_cost=self.slot,
            pages_a_second=pages_a_second,
            filling=filling,
        )


class Copier(Protocol):
    """CopyThread, or what stands in its place."""

    @property
    def written(self) -> TierDigests:
        """What the tier was written with here."""

    def begin(self, job: CopyJob) -> None: ...

    def empty(self) -> None: ...

    def cancel(self, transfer: int) -> None: ...

    def take_ended(self) -> list[tuple[int, JobEnd]]: ...

    def wait(self, seconds: float) -> None: ...

    def close(self, seconds: float) -> bool: ...


def _counters(*more: str) -> dict[str, int]:
    ends = (JobEnd.DONE, JobEnd.CANCELLED, JobEnd.BROKEN)
    return dict.fromkeys([*(end.value for end in ends), *more], 0)


@dataclass
class TierCounters:
    """Loads and writes by how they ended: late and aborted ones were given up first. Bytes: of
    those that were of use. A load counts where it failed, else at the lowest tier that it is of."""

    loads: dict[str, int] = field(
        default_factory=lambda: _counters(JobEnd.MISMATCH.value, "late", "aborted")
    )
    writes: dict[str, int] = field(default_factory=_counters)
    loaded_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True)
class LowerTier:
    """One, as the engine has it. disk, remote: what it lies on, where that outlives the node."""

    name: str
    copier: Copier
    prices: TierPrices
    disk: DiskMemory | None = None
    remote: RemoteMemory | None = None
    counters: TierCounters = field(default_factory=TierCounters)

    @property
    def outlives(self) -> DiskMemory | RemoteMemory | None:
        return self.disk or self.remote
