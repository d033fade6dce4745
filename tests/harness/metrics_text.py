"""Reads the numbers of a /metrics reply, as Prometheus does."""

from prometheus_client.parser import text_string_to_metric_families

from tests.harness.http_calls import fetched


def samples(text: bytes) -> dict[str, float]:
    """Return the numbers of a /metrics reply by `name{label=value,...}`."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def scraped(address: str) -> dict[str, float]:
    """Return the metrics of the node with its HTTP server at HOST:PORT, by
    `name{label=value,...}`."""
    return samples(fetched(address, "/metrics"))
