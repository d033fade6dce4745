"""The events of a node's history, each an object of plain JSON.

An event has `kind`, and `at` (seconds since 1970) once it is kept. The same events feed the page of
a running node, a recording, and the page of a recording. Pure functions.

| kind | of | fields |
| --- | --- | --- |
| submit | a request arrived | request, session, caller, prompt_tokens; blocks where one records |
| finished | it ended | request, reason, usage, life, hint |
| rejected | it was refused | request, error |
| room | a prompt for another node ended | room, prompt_tokens, hit, handed_on, life |
| evicted | the cache evicted | evictions |
| lost, cancelled, fenced | a hand-over | room; of lost reason, elsewhere, cause |
| pulled, pull_lost, pull_fenced | a pull of a prompt's beginning | room; of pulled report |
| left | what became of a state that was to be left to heirs | outcome, tokens, bytes, heir |
| peers | whether a prefill node is connected | prefill_available |
| pools | a sample of the node's counters | see pools_event |
"""

from dataclasses import replace
from typing import Any

from tasuki.dashboard.metrics.cache_metrics import arena_use, by_owner
from tasuki.dashboard.metrics.node_report import NodeReport
from tasuki.dashboard.observed import ObservedMessage
from tasuki.engine import messages as m

from .to_json import to_json

Event = dict[str, Any]

_KINDS: dict[type[ObservedMessage], str] = {
    m.RoomEnded: "room",
    m.Evicted: "evicted",
    m.HandoverFailed: "lost",
    m.HandoverCancelled: "cancelled",
    m.WriterFenced: "fenced",
    m.PeersChanged: "peers",
    m.PullCommitted: "pulled",
    m.PullLost: "pull_lost",
    m.PullFenced: "pull_fenced",
    m.StateLeft: "left",
    m.StateFetched: "fetched",
}
"""Of messages whose events are all their fields."""


def event_of(message: ObservedMessage) -> Event:
    """The message as an event."""
    match message:
        case m.Submit(request_id=request, prompt=prompt, session=session, caller=caller):
            return _event(
                "submit",
                request=request,
                session=session,
                caller=caller,
                prompt_tokens=len(prompt),
            )
        case m.Finished():
            return {"kind": "finished", "request": message.request_id, **_ended(message)}
        case m.Rejected(request_id=request, error=error):
            return _event("rejected", request=request, error=error)
        case m.PullCommitted():
            # Its timeline goes with the request's record, of which fewer are kept.
            message = replace(message, report=replace(message.report, timeline=None))
    return {"kind": _KINDS[type(message)], **to_json(message)}


def _ended(message: m.Finished) -> Event:
    return {name: to_json(getattr(message, name)) for name in ("reason", "usage", "life", "hint")}


def pools_event(report: NodeReport, generated_tokens: int) -> Event:
    """generated_tokens: of answers since the start."""
    stats = report.stats
    memory = arena_use(stats)
    return _event(
        "pools",
        pages=by_owner(stats.pages),
        slots=by_owner(stats.slots),
        memory=None if memory is None else memory.to_json(),
        generated_tokens=generated_tokens,
        slabs=stats.slabs,
        slab_bytes=stats.slab_bytes,
        tiers=stats.tiers,
        tree=stats.tree,
        requests=stats.requests,
        policy=stats.policy,
        policies=stats.policies,
        integrity=stats.integrity,
        prefill_nodes=report.prefill_nodes,
        windows=report.windows,
    )


def _event(kind: str, **fields: object) -> Event:
    return {"kind": kind, **{name: to_json(value) for name, value in fields.items()}}
