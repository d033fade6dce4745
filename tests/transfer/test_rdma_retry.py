"""The bound on a NIC's retries, and the fence's wait for it."""

import pytest

from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.nixl.agent import retry_bound
from tasuki.transfer.transports.nixl.transport import ENVIRONMENT


def test_the_bound_is_the_specifications() -> None:
    # 2^13 ticks of 4.096 us, four times, at first and seven times more.
    assert retry_bound("20ms", "7") == pytest.approx(8 * 4 * 4.096e-6 * 2**13)
    assert retry_bound("1000000.00us", "7") == pytest.approx(8 * 4 * 4.096e-6 * 2**18)
    assert retry_bound("1us", "0") == pytest.approx(4 * 4.096e-6 * 2)
    assert retry_bound("1s", "7") == retry_bound("1", "7") > 30


@pytest.mark.parametrize(
    ("timeout", "count"), [("soon", "7"), ("", "7"), ("20ms", "-1"), ("-1s", "7")]
)
def test_what_ucx_would_not_take_is_named(timeout: str, count: str) -> None:
    with pytest.raises(TransportError, match="UCX_RC_TIMEOUT"):
        retry_bound(timeout, count)


def test_our_settings_keep_the_fence_short() -> None:
    bound = retry_bound(ENVIRONMENT["UCX_RC_TIMEOUT"], ENVIRONMENT["UCX_RC_RETRY_COUNT"])
    assert 0.5 < bound < 1.5
