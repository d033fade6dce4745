"""Metrics of a node's pictures, as Prometheus families: outcomes, seconds of stages, memory.

Pure: the numbers come from the engine, and from the server for pictures refused before it. A node
without a vision tower has none.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.core import HistogramMetricFamily, Metric

from tasuki.dashboard.observed import PictureFiles
from tasuki.engine.messages import PictureOutcome, PictureStats, TimeSpread

from .families import bucketed, counter, gauge


def picture_families(stats: PictureStats | None, files: PictureFiles) -> Iterator[Metric]:
    """Yield the families of pictures. stats: the engine's; None without a tower. files: the
    server's."""
    if stats is None:
        return
    outcomes = {outcome.value: count for outcome, count in stats.outcomes.items()}
    refused = PictureOutcome.REFUSED.value
    outcomes[refused] = outcomes.get(refused, 0) + files.counts.refused
    yield counter(
        "pictures",
        "Pictures of prompts, by what became of them: skipped (a hit covers it), kept (its rows "
        "were stored), encoded, refused, lost (its file, its decoder or its encode).",
        "outcome",
        outcomes,
    )
    stages = {stage.value: spread for stage, spread in stats.seconds.items()}
    yield _seconds({"fetch": files.counts.fetches, **stages})
    yield gauge(
        "picture_rows_bytes",
        "Of the budget for pictures' rows: pinned by prompts, kept, free.",
        "use",
        stats.row_bytes,
    )
    yield gauge(
        "media_bytes",
        "Of picture files in memory, by holder.",
        "holder",
        {"requests": stats.media_bytes, **files.held},
    )
    yield counter(
        "picture_decoders_lost",
        "Processes that died while they decoded a picture; another took their place.",
        stats.decoders_lost,
    )


def _seconds(spreads: Mapping[str, TimeSpread]) -> Metric:
    family = HistogramMetricFamily(
        "tasuki_picture_seconds",
        "Of a picture's stages: fetch, decode, resize, tower; and wait, from a prompt's first need "
        "of its rows until they exist.",
        labels=["stage"],
    )
    for stage, spread in spreads.items():
        family.add_metric([stage], *bucketed(spread))
    return family
