"""How long an RDMA NIC may go on repeating a write that nobody answers.

Pure. From UCX's settings to the bound that InfiniBand's specification gives: a reliable connection
waits 4.096 us * 2^t for an answer, in fact up to four times that, and tries retry_count times more.
Not measured: no NIC has run this yet.
"""

import re

from tasuki.transfer.errors import TransportError

_TICK = 4.096e-6
_SPREAD = 4.0
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "m": 60.0}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ns|us|ms|s|m|)")


def retry_bound(timeout: str, retry_count: str) -> float:
    """Seconds after which a write that was posted has landed, failed or been given up. timeout,
    retry_count: as UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT hold them. Raises TransportError on what
    UCX would not take."""
    time = _TIME.fullmatch(timeout)
    if time is None or not retry_count.isdecimal():
        raise TransportError(
            f"UCX_RC_TIMEOUT {timeout!r}, UCX_RC_RETRY_COUNT {retry_count!r}: give a time as 20ms "
            "and a number"
        )
    seconds = float(time[1]) * _UNITS[time[2]]
    return (int(retry_count) + 1) * _SPREAD * _rounded_up(seconds)


def _rounded_up(seconds: float) -> float:
    """The next time that a NIC can be set to: the smallest is two ticks."""
    waits = 2 * _TICK
    while waits <= seconds:
        waits *= 2
    return waits
