"""Events of a node's history as plain JSON objects, their journal, and names of prompts' blocks.

event_of() and pools_event() make events, to_json() their values. Pure. The same events feed the
page of a running node, a recording, and the page of a recording. An event has `kind`, and `at`
(seconds since 1970) once it is kept:

| kind | meaning | fields |
| --- | --- | --- |
| submit | a request arrived | request, session, caller, prompt_tokens; blocks in recordings |
| finished | a request ended | request, reason, usage, life, hint |
| rejected | a request was refused | request, error |
| room | a prompt for another node ended | room, prompt_tokens, hit, handed_on, life |
| evicted | the cache evicted entries | evictions |
| lost, cancelled, fenced | result of a hand-over | room; of lost reason, elsewhere, cause |
| pulled, pull_lost, pull_fenced | result of a pull | room; of pulled report |
| left | result of migrating a state to drain targets | outcome, tokens, bytes, heir |
| fetched | result of fetching a state from another node | outcome, tokens, bytes, holder |
| peers | availability of prefill nodes | prefill_available |
| pools | a sample of the node's counters | see pools_event |

EventJournal owns a bounded buffer of numbered events, in order, for followers: a recorder, or a
page's stream. One thread. A follower reads the events from a number on, and gets its next number. A
slow follower gets the count of missed events. Only the newest events, read by most followers, are
kept as dicts. Older events are kept as bytes, with a fifth of the memory.

PromptBlocks names the blocks of prompts (64 tokens each), for recordings. Equal names mean equal
prefixes, and reveal nothing else. It owns a secret of this process, so a guess of a prompt cannot
be checked against a name. Names under two salts never agree.
"""

import secrets
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum, StrEnum
from itertools import islice
from typing import Any

import msgspec

from tasuki.dashboard.metrics.cache_metrics import arena_use, by_owner
from tasuki.dashboard.observed import NodeReport, ObservedMessage
from tasuki.engine import messages as m
from tasuki.engine.messages import Submit
from tasuki.pycache._cpp_cache import prefix_hashes

Event = dict[str, Any]

_KINDS: dict[type[ObservedMessage], str] = {
    m.TransferEnded: "room",
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
"""Kinds of events made from messages field by field. Their events have all fields of the
message."""


_SHOWN = {"transfer_id": "room"}
"""Renamed fields: names in events, by the names of the same fields in messages."""


def event_of(message: ObservedMessage) -> Event:
    """Return an engine's message as an event, without its time or prompt tokens."""
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
            # Its timeline belongs to the request's record; fewer records are kept than events.
            message = replace(message, report=replace(message.report, timeline=None))
    fields = {_SHOWN.get(name, name): value for name, value in to_json(message).items()}
    return {"kind": _KINDS[type(message)], **fields}


_MOST_PICTURES = 16
"""Most pictures of one request in its event, the last ones."""


def _ended(message: m.Finished) -> Event:
    event = {name: to_json(getattr(message, name)) for name in ("reason", "usage", "life", "hint")}
    if message.usage.pictures is not None:
        event["usage"]["pictures"] = _pictures(message.usage.pictures)
    return event


def _pictures(report: m.PicturesReport) -> dict[str, Any]:
    """Return a report with the number of pictures by outcome, and the last pictures alone."""
    outcomes = Counter(picture.outcome.value for picture in report.each)
    shown = replace(report, each=report.each[-_MOST_PICTURES:])
    return {**to_json(shown), "outcomes": dict(outcomes)}


def pools_event(report: NodeReport, generated_tokens: int) -> Event:
    """Return a sample of the node's counters as an event. generated_tokens: number of tokens in all
    answers since the start."""
    stats = report.stats
    memory = arena_use(stats)
    seen = {} if stats.pictures is None else {"pictures": _picture_counts(stats.pictures)}
    return _event(
        "pools",
        **seen,
        pages=by_owner(stats.pages),
        slots=by_owner(stats.slots),
        memory=None if memory is None else memory.to_json(),
        generated_tokens=generated_tokens,
        slabs=stats.slabs,
        slab_bytes=stats.slab_bytes,
        part_bytes=stats.part_bytes,
        tiers=stats.tiers,
        tree=stats.tree,
        requests=stats.requests,
        policy=stats.policy,
        policies=stats.policies,
        integrity=stats.integrity,
        prefill_nodes=report.prefill_nodes,
        windows=report.windows,
    )


def _picture_counts(stats: m.PictureStats) -> dict[str, Any]:
    """Return the pictures since the start by outcome, and the bytes of stored rows by use."""
    outcomes = {outcome.value: count for outcome, count in stats.outcomes.items() if count}
    return {"outcomes": outcomes, "row_bytes": stats.row_bytes}


def _event(kind: str, **values: object) -> Event:
    return {"kind": kind, **{name: to_json(value) for name, value in values.items()}}


def to_json(value: Any) -> Any:
    """Return the value in plain JSON types. A data class becomes an object. An enumeration becomes
    its name in lower case, a string enumeration its string. Other values stay."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value):
        return {item.name: to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return value


_REMEMBERED = 8192
_FRESH = 512


@dataclass(frozen=True)
class EventsSince:
    """The journal's events from a requested number on. next: number of the event to come. missed:
    number of requested events already forgotten."""

    events: tuple[Event, ...]
    next: int
    missed: int


class EventJournal:
    def __init__(self) -> None:
        self._packed: deque[bytes] = deque(maxlen=_REMEMBERED - _FRESH)
        self._fresh: deque[Event] = deque()
        self._count = 0

    @property
    def end(self) -> int:
        """Return the number of the next event to come."""
        return self._count

    def add(self, event: Event) -> None:
        self._fresh.append(event)
        if len(self._fresh) > _FRESH:
            self._packed.append(msgspec.msgpack.encode(self._fresh.popleft()))
        self._count += 1

    def since(self, number: int) -> EventsSince:
        fresh_from = self._count - len(self._fresh)
        first = fresh_from - len(self._packed)
        start = max(number, first)
        packed = islice(self._packed, start - first, None)
        fresh = islice(self._fresh, max(0, start - fresh_from), None)
        events = (*map(msgspec.msgpack.decode, packed), *fresh)
        return EventsSince(events, self._count, max(0, first - number))


_NAME_BYTES = 8


class PromptBlocks:
    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)

    def names(self, submit: Submit) -> list[str]:
        """Return the names of a prompt's blocks: one for each page of 64 tokens, and one for the
        rest of the prompt."""
        _, *names = prefix_hashes(submit.keys, self._secret + submit.salt)
        return [name[:_NAME_BYTES].hex() for name in names]
