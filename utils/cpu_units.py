"""Which numbers this machine's CPU multiplies in units of its own."""

from pathlib import Path

_NAMED_BY = ("flags", "Features")
_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Of x86, and of Arm."""


def has_bf16_units(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """False where the system says nothing of it."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, units = line.partition(":")
                if name.strip() in _NAMED_BY:
                    return not _BF16.isdisjoint(units.split())
    except OSError:
        return False
    return False
