"""What is counted as it happens: instruments of a registry, under names that begin with tasuki."""

from prometheus_client import CollectorRegistry, Counter, Histogram


class Instruments:
    """Borrows its registry."""

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
