"""docs/metrics.md, from the metrics themselves:
`python -m tasuki.dashboard.metrics.metrics_reference`.

Pure: lists what an exposition tells that has heard everything once.
"""

import sys
from collections import Counter

from prometheus_client.core import Metric
from tasuki.engine.messages import (
    ErrorKind,
    Evicted,
    Eviction,
    Finished,
    FinishReason,
    HitBreakdown,
    Rejected,
    RequestError,
    RequestId,
    RequestPhase,
    RoomEnded,
    RoomId,
    StatsReply,
    StepReport,
    TimeSpread,
    Usage,
)
from tasuki.transfer.liveness.node_progress import NodeProgress
from tasuki.transfer.sending.counters import SenderCounters

from .compat_names import DIALECTS
from .exposition import Exposition
from .node_report import NodeReport
from .request_metrics import UNSCHEDULED

_NO_TIMES = TimeSpread((), (0,), 0.0)

_HEAD = f"""# Metrics

Written by `python -m tasuki.dashboard.metrics.metrics_reference`; a test compares.

`GET /metrics` on the HTTP port of any node (`--http-bind`) tells these in Prometheus' text format.
`--metrics-compat {"|".join(DIALECTS[1:])}` adds the names that boards of other engines use,
`--metrics off` tells none of those that count requests. Counters end in `_total`, histograms in
`_bucket`, `_sum` and `_count`. Causes are `new`, `never_checkpointed`, `checkpoint_evicted`,
`kv_evicted`, `alignment`, `in_flight` and, for requests that ended before their prompt was looked
up, `{UNSCHEDULED}`; usable plus all causes is the prompt, exactly.

`tasuki_request_*` are of requests that ended, as their clients were told; `tasuki_cache_*` are of
the tree of this node, which also counts what was retracted, aborted or leased for another node.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
"""
_COUNTS = ("free", "working", "tree", "granted", "quarantined", "total", "pinned")
_LABEL_ONLY = "_"


def reference() -> str:
    """The page, whole."""
    families = sorted(_exposition().families(_report()), key=lambda family: family.name)
    return _HEAD + "".join(f"{_row(family)}\n" for family in families)


def _row(family: Metric) -> str:
    labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
    told = ", ".join(f"`{label}`" for label in labels)
    suffix = "_total" if family.type == "counter" else ""
    return f"| `{family.name}{suffix}` | {family.type} | {told} | {family.documentation} |"


def _exposition() -> Exposition:
    """It has heard of everything that has labels, once."""
    heard = Exposition()
    request, room = RequestId(_LABEL_ONLY), RoomId(0)
    hit = HitBreakdown(0, 0, 0, {_LABEL_ONLY: 0}, None)
    usage = Usage(0, 0, hit, None, _LABEL_ONLY, False, 0.0, 0.0)
    heard.observe(Finished(request, FinishReason.STOP, usage))
    heard.observe(Rejected(request, RequestError(ErrorKind.INVALID, _LABEL_ONLY)))
    heard.observe(RoomEnded(room, 0, hit, True, ()))
    heard.observe(Evicted((Eviction(1, _LABEL_ONLY, None, 0, 0.0, None, None),)))
    return heard


def _report() -> NodeReport:
    """Everything a node may tell, once."""
    none: Counter[str] = Counter()
    one = {_LABEL_ONLY: 0}
    pool = dict.fromkeys(_COUNTS, 0)
    stats = StatsReply(
        query_id=0,
        pages=pool,
        slots=pool,
        slabs=none,
        tree=none,
        lost=one,
        requests={RequestPhase.WAITING: 0},
        policies={_LABEL_ONLY: 0.0},
        steps=StepReport(_NO_TIMES, _NO_TIMES),
        early=one,
    )
    return NodeReport(
        stats,
        prefill_nodes=one,
        windows=one,
        sent=SenderCounters(),
        peers={_LABEL_ONLY: NodeProgress()},
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
