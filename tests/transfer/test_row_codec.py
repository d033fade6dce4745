"""Rows of numbers at the wire's precisions: the error bound, values that are not finite, and a
second transfer without a change."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.pycache.fp8_rows import row_scales
from tasuki.transfer.precision.wire_layout import ALIGNMENT, RowFormat, WireError, WireUnits
from tasuki.transfer.settings import Precision, WirePrecision
from tests.harness.loopback_pair import small_layout

BF16, FP8 = Precision.BF16, Precision.FP8
# Every finite e4m3 number, by its definition.
GRID = np.array(
    sorted(
        sign * (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
        for sign in (1, -1)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    )
)


def travelled(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Return the values after the wire. values: [rows, width]."""
    form = RowFormat(precision, *values.shape)
    encoded = form.encode(values[None])
    assert encoded.shape == (1, form.encoded_bytes)
    return form.decode(encoded, values.dtype)[0]


def rows(seed: int, exponent: int, dtype: torch.dtype) -> torch.Tensor:
    """Return rows of very different sizes, with outliers, zeros and signs."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(6, 24, generator=generator)
    values[1] *= torch.exp2(torch.randint(-20, 20, (24,), generator=generator).float())
    values[2, 3] = 3e3
    values[3, 5:] = 0
    return (values * 2.0**exponent).to(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**31),
    st.integers(-90, 90),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_fp8_errs_by_a_sixteenth_at_most_and_lands_on_the_nearest_number(
    seed: int, exponent: int, dtype: torch.dtype
) -> None:
    values = rows(seed, exponent, dtype)
    exact, got = values.double(), travelled(values, FP8).double()
    scale = torch.exp2(row_scales(values.float()).double() - 127)[:, None]
    assert bool((exact.abs() <= 448 * scale).all())
    assert bool(((got - exact).abs() <= torch.maximum(exact.abs() / 16, scale / 1024)).all())
    assert bool(((got - exact).abs() <= exact.abs().amax(1, keepdim=True) / 16).all())
    nearest = np.abs((exact / scale).numpy()[..., None] - GRID).min(-1)
    assert np.array_equal(np.abs(((got - exact) / scale).numpy()), nearest)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(-90, 90))
def test_bf16_errs_by_a_256th_at_most(seed: int, exponent: int) -> None:
    values = rows(seed, exponent, torch.float32)
    got = travelled(values, BF16)
    assert bool(((got - values).abs() <= values.abs() / 256).all())
    assert torch.equal(got, values.to(torch.bfloat16).float())


@pytest.mark.parametrize("precision", [BF16, FP8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_second_journey_changes_nothing(precision: Precision, dtype: torch.dtype) -> None:
    for seed in range(20):
        once = travelled(rows(seed, seed - 10, dtype), precision)
        assert torch.equal(travelled(once, precision), once)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_shows_and_stays_in_its_row(bad: float) -> None:
    values = rows(1, 0, torch.float32)
    clean = travelled(values, FP8)
    values[2, 7] = bad
    got = travelled(values, FP8)
    assert bool(got[2].isnan().all())
    others = [0, 1, 3, 4, 5]
    assert torch.equal(got[others], clean[others])
    kept = travelled(values, BF16)
    assert torch.equal(kept, values.to(torch.bfloat16).float()) or np.isnan(bad)
    assert bool(kept[2, 7].isfinite()) is False
    assert int((~kept.isfinite()).sum()) == 1


def test_extremes_keep_their_sign_and_size() -> None:
    tiny, large = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
    values = torch.tensor([[0.0, -0.0, 0.0], [tiny, -tiny, 0.0], [large * 0.9, -large * 0.9, 1.0]])
    got = travelled(values, FP8)
    assert torch.equal(got[0], values[0])
    assert bool(torch.signbit(got[0])[1])
    assert bool(((got[1:] - values[1:]).abs() <= values[1:].abs().amax(1, keepdim=True) / 16).all())
    # Rounded up beyond the largest number it is infinite, as in any cast; never small or swapped.
    assert torch.equal(travelled(torch.tensor([[large]]), FP8), torch.tensor([[float("inf")]]))


def test_units_are_aligned_shorter_and_never_longer_than_what_they_become() -> None:
    layout = small_layout()
    for kv in Precision:
        for state in Precision:
            units = WireUnits.of(layout, WirePrecision(kv, state))
            block, held = units.block_length(3), units.state_length(0)
            assert block % ALIGNMENT == held % ALIGNMENT == 0
            assert (block < layout.block_bytes) == (kv is not Precision.EXACT)
            assert (held < layout.state_length(0)) == (state is not Precision.EXACT)


def test_a_precision_that_saves_nothing_is_refused() -> None:
    layout = small_layout(kv_dtype="bfloat16", ssm_dtype="bfloat16")
    for precision in (WirePrecision(kv=BF16), WirePrecision(state=BF16)):
        with pytest.raises(WireError, match="bf16 saves nothing over bfloat16"):
            WireUnits.of(layout, precision)
    assert WireUnits.of(layout, WirePrecision(kv=FP8)).block_length(3) < layout.block_bytes


def test_codes_tell_every_precision_apart_and_fit_a_notification() -> None:
    codes = {WirePrecision(kv, state).code for kv in Precision for state in Precision}
    assert len(codes) == 9
    assert WirePrecision().code == 0
    assert max(codes) < 2**7
