"""Constructors of metrics: families of numbers, and counting instruments.

gauge(), counter() and histogram() make families from numbers counted by other parts. Pure.
Instruments counts events as they happen, under names with the prefix tasuki. Both share the bounds
of the histograms.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from tasuki.engine.messages import TimeSpread

FIRST_TOKEN = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120)
TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1)
REQUEST = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)
QUEUE = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
PREFILL = (0.003, 0.01, 0.03, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 100)
EXPOSED = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
WINDOW = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3)
FENCE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


def gauge(name: str, text: str, *value: str | float | Mapping[str, float]) -> Metric:
    return _filled(GaugeMetricFamily, name, text, *value)


def counter(name: str, text: str, *value: str | float | Mapping[str, float]) -> Metric:
    return _filled(CounterMetricFamily, name, text, *value)


def _filled(
    family: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    *value: str | float | Mapping[str, float],
) -> Metric:
    """Return a metric family with its samples. value: one number, or a label's name and a number
    for each of its values."""
    match value:
        case (int(number) | float(number),):
            return family(f"tasuki_{name}", text, value=number)
        case (str(label), counts) if isinstance(counts, Mapping):
            metric = family(f"tasuki_{name}", text, labels=[label])
            for key in sorted(counts):
                metric.add_metric([key], counts[key])
            return metric
    raise TypeError(f"{name}: neither a number nor a label with its numbers")


def histogram(name: str, text: str, spread: TimeSpread) -> Metric:
    """Return a histogram family of seconds. spread: bounds, counts in each bucket, and the sum."""
    family = HistogramMetricFamily(f"tasuki_{name}_seconds", text)
    family.add_metric([], *bucketed(spread))
    return family


def bucketed(spread: TimeSpread) -> tuple[list[tuple[str, float]], float]:
    """Return a spread's buckets, each a bound and the count up to it, and the sum in seconds."""
    buckets, below = [], 0
    for bound, count in zip((*spread.bounds, float("inf")), spread.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(below)))
    return buckets, spread.seconds


class Instruments:
    """Constructors of counting metrics with the prefix tasuki. Borrows its registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"tasuki_{name}", text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"tasuki_{name}", text, labels, buckets=buckets, registry=self._registry)

    def seconds(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return self.histogram(f"{name}_seconds", text, buckets, *labels)
