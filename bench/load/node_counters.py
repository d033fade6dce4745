"""A node's Prometheus metrics as numbers. Pure."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families


class NodeCounters:
    def __init__(self, text: str) -> None:
        """Parse the metrics. text: the reply of GET /metrics."""
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for item in family.samples:
                labels = tuple(sorted(item.labels.items()))
                self._values.setdefault(item.name, {})[labels] = item.value

    def total(self, name: str, **labels: str) -> float:
        """Return a metric's sum over all its labels except the given ones. Returns 0.0 if the node
        has no such metric."""
        wanted = labels.items()
        found = self._values.get(f"tasuki_{name}", {})
        return sum(value for key, value in found.items() if wanted <= dict(key).items())

    def grown(self, before: "NodeCounters", name: str, **labels: str) -> float:
        return self.total(name, **labels) - before.total(name, **labels)

    def quantile_since(self, before: "NodeCounters", name: str, share: float) -> float | None:
        """Return a quantile of a histogram's observations since `before` (an earlier read), in
        seconds. Returns None if there are none. share: the quantile, 0 to 1. Interpolates evenly
        within a bucket. Observations beyond the last bound count as the bound itself."""
        counts = list(self._grown_buckets(before, f"{name}_bucket"))
        if not counts or not counts[-1][1]:
            return None
        wanted = share * counts[-1][1]
        lower, below = 0.0, 0.0
        for bound, upto in counts:
            if upto >= wanted:
                if bound == float("inf"):
                    return lower
                return lower + (bound - lower) * (wanted - below) / max(upto - below, 1e-12)
            lower, below = bound, upto
        return lower

    def _grown_buckets(self, before: "NodeCounters", name: str) -> Iterator[tuple[float, float]]:
        """Yield each histogram bucket's upper bound and the number of new observations up to it,
        ascending. New observations are those since `before`."""
        bounds = {dict(key)["le"] for key in self._values.get(f"tasuki_{name}", {})}
        for text in sorted(bounds, key=float):
            yield float(text), self.grown(before, name, le=text)
