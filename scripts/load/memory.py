"""How much memory a process holds over time, and whether that stays flat."""

_MIB = 2**20


class MemoryTrail:
    """Samples of one process in even steps."""

    def __init__(self) -> None:
        self._samples: list[int] = []

    def add(self, resident: int) -> None:
        self._samples.append(resident)

    @property
    def growth(self) -> int:
        """Bytes from the third fifth of the trail to its last, each by its lowest sample: what a
        forward holds while it runs comes and goes, what leaks stays. What comes before is warm-up,
        in which the arena's pages are touched for the first time and the logs of ended requests
        fill. 0 before there are enough samples."""
        fifth = len(self._samples) // 5
        if not fifth:
            return 0
        middle, last = self._samples[2 * fifth : 3 * fifth], self._samples[-fifth:]
        return min(last) - min(middle)

    @property
    def last(self) -> int:
        return self._samples[-1] if self._samples else 0

    def is_flat(self, share: float = 0.03) -> bool:
        """Whether the growth is at most that share of what the process holds."""
        return self.growth <= share * self.last

    def __str__(self) -> str:
        return f"{self.last / _MIB:.0f} MiB, {self.growth / _MIB:+.1f} MiB since its warm-up"
