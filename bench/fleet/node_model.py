"""What a node of a simulated fleet serves: how its cache lies, and how long its prefills take,
where they were measured and where they were not.

A model is measured on one device; the figures are of docs/results, whose files name the versions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from tasuki.model.costs import PrefillFlops
from tasuki.model.known_models import published_or_folder
from tasuki.pycache.layout import CacheLayout
from tasuki.routing.node_load import PrefillSeconds


@dataclass(frozen=True)
class MeasuredPrefill:
    """To the first token, of the tokens first..last, those before them being cached."""

    first: int
    last: int
    seconds: float


@dataclass(frozen=True)
class Measurement:
    """Of a prefill alone on the device."""

    device: str
    date: str
    commit: str
    source: str
    prefills: tuple[MeasuredPrefill, ...]


def fitted(prefills: Sequence[MeasuredPrefill]) -> PrefillSeconds:
    """Least squares of what PrefillSeconds adds up."""
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
    """By the name of a published shape; None where it was not measured."""
    size = model.lower().removeprefix("qwen/").removeprefix("qwen3.5-")
    return _9B if size == "9b" else None


def prefill_seconds(
    model: str, tflops: float | None, fixed: float, linear: float, quadratic: float
) -> tuple[PrefillSeconds, str]:
    """And where it comes from. tflops: TFLOP/s that are assumed; None: what was measured.
    fixed: seconds of any prefill. linear, quadratic: FLOPs as PrefillFlops has them.
    REQUIRES: the model was measured, or tflops is given."""
    if tflops is not None:
        rate = tflops * 1e12
        assumed = f"{tflops:g} TFLOP/s + {fixed * 1e3:g} ms, assumed"
        return PrefillSeconds(fixed, linear / rate, quadratic / rate), assumed
    found = measured(model)
    assert found is not None, "tflops is given where nothing was measured"
    return fitted(found.prefills), f"measured: {found.device}, {found.date}, commit {found.commit}"


@dataclass(frozen=True)
class NodeModel:
    """source: where the seconds come from."""

    layout: CacheLayout
    flops: PrefillFlops
    seconds: PrefillSeconds
    source: str

    @classmethod
    def published(cls, name: str, tflops: float | None, fixed: float) -> Self:
        """name: of a published shape, or a checkpoint's folder. tflops, fixed: as prefill_seconds
        has them. Raises ModelConfigError."""
        config = published_or_folder(name)
        flops = PrefillFlops.for_model(config)
        seconds, source = prefill_seconds(name, tflops, fixed, flops.linear, flops.quadratic)
        return cls(config.cache_layout("bfloat16", "bfloat16", "float32"), flops, seconds, source)
