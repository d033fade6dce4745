"""The model served by a simulated node: its cache layout, and its measured or assumed prefill
times.

A model is measured on one device. The figures come from docs/results; its files name the versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tasuki.model.costs import PrefillFlops
from tasuki.model.families.registry import family_of, published_or_folder
from tasuki.pycache.layout import CacheLayout
from tasuki.routing.node_load import PrefillSeconds


@dataclass(frozen=True)
class MeasuredPrefill:
    """The measured seconds to the first token of a prompt with `first` cached tokens and `last`
    tokens in all."""

    first: int
    last: int
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """Measured times of one prefill at a time on the device."""

    device: str
    date: str
    commit: str
    source: str
    prefills: tuple[MeasuredPrefill, ...]


def fitted(prefills: Sequence[MeasuredPrefill]) -> PrefillSeconds:
    """Fit the constant, linear and quadratic terms of PrefillSeconds to measurements, by least
    squares."""
    rows = [(1.0, each.last - each.first, (each.last**2 - each.first**2) / 2) for each in prefills]
    measured = [each.seconds for each in prefills]
    scale = np.max(rows, axis=0)
    found = np.linalg.lstsq(np.array(rows) / scale, np.array(measured), rcond=None)[0] / scale
    return PrefillSeconds(*(float(value) for value in found))


_9B = Measurement(
    "NVIDIA H200",
    "2026-11-21",
    "94171c0",
    "docs/results/prefill.jsonl#9b, agentic.jsonl#9b",
    (
        MeasuredPrefill(0, 8_192, 0.19249),
        MeasuredPrefill(0, 50_000, 1.41342),
        MeasuredPrefill(50_063, 50_863, 0.03049),
    ),
)


def measured(model: str) -> Measurement | None:
    """Return the measurement of a published shape, or None if it was not measured."""
    size = model.lower().removeprefix("qwen/").removeprefix("qwen3.5-")
    return _9B if size == "9b" else None


def prefill_seconds(
    model: str, tflops: float | None, fixed: float, linear: float, quadratic: float
) -> tuple[PrefillSeconds, str]:
    """Return the time function of a prefill, and the origin of its figures. tflops: assumed
    TFLOP/s; None: use the measurement. fixed: seconds added to any prefill. linear, quadratic:
    FLOPs, like in PrefillFlops. REQUIRES: the model was measured, or tflops is given."""
    if tflops is not None:
        rate = tflops * 1e12
        assumed = f"{tflops:g} TFLOP/s + {fixed * 1e3:g} ms, assumed"
        return PrefillSeconds(fixed, linear / rate, quadratic / rate), assumed
    found = measured(model)
    assert found is not None, "tflops is given where nothing was measured"
    return fitted(found.prefills), f"measured: {found.device}, {found.date}, commit {found.commit}"


@dataclass(frozen=True)
class NodeModel:
    """The model of a simulated node. source: text naming the origin of the prefill times."""

    layout: CacheLayout
    flops: PrefillFlops
    seconds: PrefillSeconds
    source: str

    @classmethod
    def published(cls, name: str, tflops: float | None, fixed: float) -> Self:
        """Build the model. name: a published shape, or a checkpoint's folder. tflops, fixed: like
        in prefill_seconds(). Raises ModelConfigError."""
        config = published_or_folder(name)
        flops = family_of(config).prefill_flops(config)
        seconds, source = prefill_seconds(name, tflops, fixed, flops.linear, flops.quadratic)
        return cls(config.cache_layout("bfloat16", "bfloat16", "float32"), flops, seconds, source)
