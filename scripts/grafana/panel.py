"""One panel of a Grafana dashboard: a title, a unit, its queries, and their form in Grafana's SDK.

Metrics are named without their common prefix `tasuki_`. Queries use $node for the chosen nodes and
$rate for the time span of a rate.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import DataSourceRef, Threshold, ThresholdsMode

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
NODES = 'instance=~"$node"'


@dataclass(frozen=True)
class Query:
    """One query. expr: PromQL. legend: the curve's name, with {{label}} for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """A panel of curves. unit: Grafana's name of the unit. stacked: True if the queries are parts
    of one whole."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str
    stacked: bool = False


@dataclass(frozen=True)
class Tile:
    """A panel with one or two current numbers, above their curve over the dashboard's time. marks:
    pairs of a lower bound and the colour above it; the first bound is None."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    text: str
    marks: tuple[tuple[float | None, str], ...]


def rate(metric: str, by: str = "") -> str:
    """Return the PromQL of a counter's rate a second, summed over the chosen nodes. by: a label
    with a curve for each value; empty: one curve."""
    kept = f" by ({by})" if by else ""
    return f"sum{kept} (rate(tasuki_{metric}{{{NODES}}}[$rate]))"


def share(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def gauge(metric: str, by: str) -> str:
    return f"sum by ({by}) (tasuki_{metric}{{{NODES}}})"


def by_label(
    title: str, metric: str, by: str, text: str, unit: str = "short", stacked: bool = False
) -> Panel:
    """Return a panel with a curve for each value of the label `by`: a counter's rate a second, or a
    gauge's value. text: the panel's description."""
    expr = rate(metric, by) if metric.endswith("_total") else gauge(metric, by)
    return Panel(title, unit, (Query(expr, f"{{{{{by}}}}}"),), text, stacked)


def of_tiers(metric: str, by: str = "", where: str = "") -> str:
    """Return the PromQL of a metric of the tiers below the arena, with a curve for each tier. A
    counter is shown by its rate a second. by: another label with curves of its own. `where`:
    conditions on other labels, in PromQL, ending with a comma."""
    kept = f"tier, {by}" if by else "tier"
    chosen = f"tasuki_tier_{metric}{{{where}{NODES}}}"
    if metric.endswith("_total"):
        chosen = f"rate({chosen}[$rate])"
    return f"sum by ({kept}) ({chosen})"


def of_stage(stage: str) -> str:
    """Return the PromQL of the buckets of a stage's seconds of pictures."""
    chosen = f'tasuki_picture_seconds_bucket{{stage="{stage}", {NODES}}}'
    return f"sum by (le) (rate({chosen}[$rate]))"


def by_tier(title: str, metric: str, by: str, text: str) -> Panel:
    """Return a panel with a curve for each tier and each value of the label `by`."""
    return Panel(title, "short", (Query(of_tiers(metric, by), f"{{{{tier}}}} {{{{{by}}}}}"),), text)


def times(title: str, metric: str, text: str) -> Panel:
    """Return a panel with the quantiles of a histogram of seconds. metric: its name without
    `_seconds`."""
    return spread(title, f"{metric}_seconds", text, "s")


def spread(title: str, metric: str, text: str, unit: str) -> Panel:
    """Return a panel with a histogram's median and upper quantiles."""
    return Panel(title, unit, quantiles(metric), text)


def rates(title: str, text: str, unit: str = "short", **metrics: str) -> Panel:
    """Return a panel of several counters' rates a second. metrics: each counter by its legend; `_`
    in a legend becomes a blank."""
    queries = (Query(rate(of), legend.replace("_", " ")) for legend, of in metrics.items())
    return Panel(title, unit, tuple(queries), text)


def quantiles(metric: str, wanted: tuple[float, ...] = (0.5, 0.9, 0.99)) -> tuple[Query, ...]:
    """Return the queries of a histogram's quantiles. wanted: the quantiles, default 0.5, 0.9 and
    0.99."""
    buckets = f"sum by (le) (rate(tasuki_{metric}_bucket{{{NODES}}}[$rate]))"
    return tuple(
        Query(f"histogram_quantile({quantile}, {buckets})", f"p{100 * quantile:g}")
        for quantile in wanted
    )


def built(panel: Panel | Tile) -> timeseries.Panel | stat.Panel:
    return _tile(panel) if isinstance(panel, Tile) else _curves(panel)


def _tile(tile: Tile) -> stat.Panel:
    marks = [Threshold(value=bound, color=colour) for bound, colour in tile.marks]
    thresholds = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(marks)
    drawn = (
        stat.Panel()
        .title(tile.title)
        .description(tile.text)
        .unit(tile.unit)
        .datasource(DATASOURCE)
        .thresholds(thresholds)
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .text_mode(
            BigValueTextMode.VALUE if len(tile.queries) == 1 else BigValueTextMode.VALUE_AND_NAME
        )
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .span(6)
        .height(5)
    )
    for target in _targets(tile.queries):
        drawn = drawn.with_target(target)
    return drawn


def _targets(queries: tuple[Query, ...]) -> Iterator[prometheus.Dataquery]:
    for number, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr.replace("$rate", "$__rate_interval"))
        yield target.legend_format(query.legend).ref_id(chr(65 + number))


def _curves(panel: Panel) -> timeseries.Panel:
    drawn = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.text)
        .unit(panel.unit)
        .datasource(DATASOURCE)
        .fill_opacity(70 if panel.stacked else 10)
        .min(0)
        .span(12)
        .height(8)
    )
    if panel.stacked:
        drawn = drawn.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    for target in _targets(panel.queries):
        drawn = drawn.with_target(target)
    return drawn
