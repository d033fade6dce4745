"""docs/metrics.md, from the metrics themselves: `python -m
tasuki.dashboard.metrics.metrics_reference`.

Pure: lists the metrics of an exposition after one message of every kind.
"""

import sys
from collections import Counter

import numpy as np
from prometheus_client.core import Metric

from tasuki.dashboard.dialects import GEN_AI
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.metrics.request_metrics import UNSCHEDULED
from tasuki.dashboard.observed import DiskRoom, FrontReport, NodeReport
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.transfer.control.link_status import NodeProgress, PrefillNodeState, PrefillNodeStatus
from tasuki.transfer.reports import SenderCounters

_NO_TIMES = m.TimeSpread((), (0,), 0.0)

_HEAD = f"""# Metrics

Written by `python -m tasuki.dashboard.metrics.metrics_reference`; a test compares.

`GET /metrics` on the HTTP port of any node (`--http-bind`) serves these in Prometheus' text format.
`--metrics-compat vllm|sglang` adds the names of other engines' boards, `{GEN_AI}` those
of OpenTelemetry's [GenAI conventions](dashboards.md#opentelemetry); `--metrics off` leaves out
those that count requests. Counters end in `_total`, histograms in `_bucket`, `_sum` and `_count`.
Causes are the [reasons](concepts.md) of lost tokens, and `{UNSCHEDULED}` for requests that ended
before their prompt was looked up. Usable plus all causes is the prompt.

`tasuki_request_*` count ended requests, by their usages. `tasuki_cache_*` count in this node's
tree, also requests that were retracted, aborted or computed for another node. A retracted request
is looked up again, and counts once in `tasuki_looked_up_*`, as it ends.
`tasuki_calls_failed_total` counts clients' answers by the kinds of [errors](errors.md),
`tasuki_requests_rejected_total` the engine's refusals. While the engine does not answer, its
numbers are the last ones, and `tasuki_engine_silent_seconds` is above 0. A dead engine has none.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
"""
_COUNTS = ("free", "working", "tree", "granted", "quarantined", "total", "pinned")
_LABEL_ONLY = "_"


def reference() -> str:
    """Return the whole page docs/metrics.md as text."""
    return _HEAD + "".join(f"{_row(family)}\n" for family in families())


def families() -> list[Metric]:
    """Return every metric family of a node, sorted by name."""
    return sorted(_exposition().families(_report(), _front()), key=lambda one: one.name)


def _row(family: Metric) -> str:
    labels = sorted({key for sample in family.samples for key in sample.labels} - {"le"})
    names = ", ".join(f"`{label}`" for label in labels)
    suffix = "_total" if family.type == "counter" else ""
    return f"| `{family.name}{suffix}` | {family.type} | {names} | {family.documentation} |"


def _exposition() -> Exposition:
    """Return an Exposition after it has observed one message of every kind with labels."""
    exposition = Exposition()
    request, transfer_id = m.RequestId(_LABEL_ONLY), m.TransferId(0)
    hit = m.HitBreakdown(0, 0, 0, {_LABEL_ONLY: 0}, None, loaded={_LABEL_ONLY: 0})
    sent = m.TransferReport(0, 0, 0, 0.0, 0.0)
    drafts = (m.DraftUse(_LABEL_ONLY, (0,), (0,)),)
    usage = m.Usage(0, 2, hit, sent, _LABEL_ONLY, False, 0.0, 0.0, drafts=drafts)
    prompt = np.zeros(1, np.int32)
    exposition.observe(m.Submit(request, prompt, SamplingParams(), caller=_LABEL_ONLY))
    exposition.observe(m.Finished(request, m.FinishReason.STOP, usage))
    exposition.observe(m.Rejected(request, m.RequestError(m.ErrorKind.INVALID, _LABEL_ONLY)))
    exposition.observe(m.TransferEnded(transfer_id, 0, hit, True, ()))
    exposition.observe(m.Evicted((m.Eviction(1, _LABEL_ONLY, None, 0, 0.0, None, None),)))
    return exposition


def _front() -> FrontReport:
    """Return an API server's report with every field set, for the reference."""
    one = {_LABEL_ONLY: 0}
    room = {_LABEL_ONLY: DiskRoom(0, 0)}
    return FrontReport(failures=one, certificates=one, disks=room)


def _link() -> PrefillNodeStatus:
    return PrefillNodeStatus(
        _LABEL_ONLY, None, PrefillNodeState.LOST, usable_prefixes=0, wait_seconds=0.0
    )


def _report() -> NodeReport:
    """Return an engine's report with every field set, for the reference."""
    none: Counter[str] = Counter()
    one = {_LABEL_ONLY: 0}
    pool = dict.fromkeys(_COUNTS, 0)
    stats = m.StatsReply(
        query_id=0,
        pages=pool,
        slots=pool,
        slabs=Counter(free=1),
        slab_bytes=1,
        tree=none,
        lost=one,
        requests={m.RequestPhase.WAITING: 0},
        each_bytes={"page": 1, "slot": 1},
        part_bytes={"page.kv": 1},
        stored={_LABEL_ONLY: ""},
        policies={_LABEL_ONLY: 0.0},
        steps=m.StepReport(_NO_TIMES, _NO_TIMES, {_LABEL_ONLY: 0}),
        early=one,
        tiers=(m.TierReport(_LABEL_ONLY, 0, *(one for _ in range(9))),),
        pictures=m.PictureStats(
            {m.PictureOutcome.KEPT: 0}, {m.PictureStage.TOWER: _NO_TIMES}, one, 0, 0
        ),
    )
    return NodeReport(
        stats,
        prefill_nodes=one,
        windows=one,
        sent=SenderCounters(),
        peers={_LABEL_ONLY: NodeProgress()},
        chat_tokens=one,
        links=(_link(),),
        about={"started_at": "0"},
    )


if __name__ == "__main__":
    sys.stdout.write(reference())
