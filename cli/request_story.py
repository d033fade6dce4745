"""One request's report, in lines. It shows the prompt's match, its lost tokens with the evicting
requests, its transfer's timeline, and its seconds by state. Pure.

Also shows timelines of a transfer and of a pull as lines of text: a track of each node, on that
node's clock. Pure functions.
"""

from collections.abc import Mapping, Sequence

from tasuki.dashboard.metrics.request_metrics import missed_targets, seconds_by_phase
from tasuki.engine import messages as m
from tasuki.engine.messages.proto import EVICTION, USAGE
from tasuki.engine.messages.reports import LOAD_DECLINED, LOAD_FAILED, TEMPLATE_CHANGED
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.protocol.messages import TIMELINE
from tasuki.transfer.reports import (
    HandoverTimeline,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SentChunk,
)

from .picture_story import pictures_story

_Drawn = tuple[SentChunk, Sequence[float]]
_WIDTH = 60
_ROWS = 12
"""Largest number of layer chunks shown of one node's track. With more layer chunks only every n-th
is shown, and always the first and the last."""


def chart(timeline: HandoverTimeline) -> list[str]:
    ticks = [chunk.layers_finished for chunk in timeline.sender.windows]
    return [
        *_sender("sender", timeline.sender, ticks, "| layer done, = sending"),
        *_receiver("receiver", timeline.receiver),
    ]


def pull_chart(timeline: HandoverTimeline) -> list[str]:
    """Return the chart of a pull (a prefix copied from another node). It marks no finished layers,
    because all layers were complete before the pull."""
    none = [()] * len(timeline.sender.windows)
    return [
        *_sender("giver", timeline.sender, none, "= sending"),
        *_receiver("puller", timeline.receiver),
    ]


def _sender(
    name: str, track: SenderTrack, ticks: Sequence[Sequence[float]], meaning: str
) -> list[str]:
    """Return the sender's track in the chart. ticks: for each layer chunk, the times to mark in its
    bar. meaning: legend of the bars."""
    if not track.windows:
        return []
    end = max([chunk.flushed_at for chunk in track.windows] + [m.at for m in track.phases])
    lines = [f"  {name:<8} {_phases(track.phases)}"]
    for chunk, marks in _thinned(list(zip(track.windows, ticks, strict=True))):
        begun = _column(chunk.begun_at, end)
        bar = [" "] * begun + ["="] * (_column(chunk.flushed_at, end) - begun + 1)
        bar += [" "] * (_WIDTH - len(bar))
        for at in marks:
            bar[_column(at, end)] = "|"
        state = " and state" if chunk.carries_state else ""
        lines.append(
            f"    {chunk.sequence:>4} {''.join(bar)} layers {chunk.first_layer}-"
            f"{chunk.end_layer - 1}, {chunk.pages} pages{state}"
        )
    return [*lines, f"         0{f'{end * 1000:.1f} ms':>{_WIDTH - 1}} {meaning}"]


def _receiver(name: str, track: ReceiverTrack) -> list[str]:
    lines = [f"  {name:<8} {_phases(track.phases)}"]
    lines += [
        f"    waited {1000 * (wait.ended_at - wait.began_at):.2f} ms for layer {wait.layer}"
        for wait in track.waits[:_ROWS]
    ]
    return lines


def _phases(marks: Sequence[PhaseMark]) -> str:
    return ", ".join(f"{mark.phase.name.lower()} {mark.at * 1000:.1f} ms" for mark in marks)


def _column(at: float, end: float) -> int:
    return min(_WIDTH - 1, max(0, int(_WIDTH * at / end))) if end else 0


def _thinned(items: Sequence[_Drawn]) -> Sequence[_Drawn]:
    if len(items) <= _ROWS:
        return items
    return [items[round(row * (len(items) - 1) / (_ROWS - 1))] for row in range(_ROWS)]


_BAR = 60
_DECISIONS = 10
_CHOSEN = {
    "only": "the only one left",
    "cost": "the cheapest",
    "stale": "by hash, because no node's contents were known",
    "sticky": "by hash",
    "fewest_rooms": "with the fewest prompts of this node",
    "moved": "the second choice, when the first had too much to do",
    "gateway": "named by the gateway",
}
_MEANING = {
    "not_pulled": "cached on the node that answered, and not pulled by the one that computed it",
    "new": "never seen before, and the last token, which is always computed",
    "never_checkpointed": "its KV is cached, but no recurrent state was kept this deep",
    "checkpoint_evicted": "its state was kept and had to make room",
    "kv_evicted": "its KV was cached and had to make room",
    "alignment": "inside a page that was cached only in part",
    "in_flight": "being computed by another request at that moment",
    LOAD_DECLINED: "in memory below the arena, and cheaper to compute than to load",
    LOAD_FAILED: "to be loaded from below the arena, and what came was late or wrong",
    TEMPLATE_CHANGED: "the chat template renders an earlier turn otherwise than before",
}


def story(report: pb.ExplainResponse) -> list[str]:
    """Return the report of one request as lines of text."""
    head = f"request {report.request_id}, ended {report.ended_seconds_ago:.1f} s ago"
    if report.WhichOneof("end") == "rejected":
        return [f"{head}: refused", f"  {report.rejected}"]
    reason = pb.FinishReason.Name(report.finished.reason).removeprefix("FINISH_REASON_").lower()
    usage = USAGE.from_wire(report.finished.usage)
    return [
        f"{head}: {reason}",
        *_answer(usage),
        *(pull_chart(TIMELINE.from_wire(report.pull)) if report.HasField("pull") else []),
        *(_prompt(usage.hit) if usage.hit else ["  prompt   was never looked up: it ended before"]),
        *(_resumed(usage.hit, report.part_bytes) if usage.hit else []),
        *(pictures_story(usage.pictures, usage.prompt_tokens) if usage.pictures else []),
        *(_lost(usage.hit.lost) if usage.hit and usage.hit.lost else []),
        *_took([*map(EVICTION.from_wire, report.took)]),
        *(_transfer(usage.transfer) if usage.transfer else []),
        *(chart(TIMELINE.from_wire(report.handover)) if report.HasField("handover") else []),
        *_life(report.life),
    ]


def _answer(usage: m.Usage) -> list[str]:
    where = "after a lost hand-over, here" if usage.local_fallback else usage.prefilled_on
    return [
        f"  answer   {usage.completion_tokens} tokens, the first after "
        f"{usage.time_to_first_token * 1000:.0f} ms, all after {usage.seconds * 1000:.0f} ms",
        *(_drafts(usage) if usage.drafted_tokens else []),
        *(_targets(usage, usage.targets) if usage.targets else []),
        f"  prefill  {where}",
        *(_route(usage.route) if usage.route else []),
        *(_prefill_choice(usage.prefill_choice) if usage.prefill_choice else []),
        *(_pulled(usage.pulled) if usage.pulled else []),
    ]


def _drafts(usage: m.Usage) -> list[str]:
    # Each step after the first token gave one token more than it accepted.
    steps = max(1, usage.completion_tokens - usage.accepted_tokens - 1)
    return [
        f"  drafts   {usage.accepted_tokens} of {usage.drafted_tokens} tokens were accepted, "
        f"{usage.drafted_tokens / steps:.1f} of a step",
        *(_drafts_of(use) for use in usage.drafts),
    ]


def _drafts_of(use: m.DraftUse) -> str:
    """Return the line of a draft source: accepted of drafted tokens at the first place in a step,
    at the second, and so on."""
    pairs = zip(use.accepted, use.drafted, strict=True)
    places = ", ".join(f"{accepted} of {drafted}" for accepted, drafted in pairs)
    return f"    {use.source:<10} by place {places}"


def _targets(usage: m.Usage, targets: m.Targets) -> list[str]:
    named = {
        "first_token": ("the first token", targets.first_token),
        "per_token": ("each after it", targets.per_token),
        "answer": ("the whole answer", targets.answer),
    }
    missed = missed_targets(usage)
    parts = (
        f"{what} within {1000 * seconds:g} ms ({'missed' if name in missed else 'kept'})"
        for name, (what, seconds) in named.items()
        if seconds is not None
    )
    return [f"  targets  {', '.join(parts)}"]


def _route(route: m.RouteReport) -> list[str]:
    times = ", ".join(f"{of} {1000 * at:.1f} ms" for of, at in sorted(route.estimates.items()))
    return [f"  route    {route.choice}: " + (f"by rates, {times}" if times else "by constants")]


def _prefill_choice(choice: m.PrefillChoice) -> list[str]:
    """Return the lines about the choice of the prefill node: the reason, then one line for each
    weighed node, cheapest first."""
    why = _CHOSEN.get(choice.reason, choice.reason)
    moved = f", {choice.moved_from} had it before" if choice.moved_from else ""
    head = f"  node     {why}, of {choice.weighed}{moved}"
    if choice.regret_seconds:
        head += f"; {choice.regret_seconds:.3f} s dearer than another, as it turned out"
    return [head, *(_bid(bid) for bid in choice.bids)]


def _bid(bid: m.PrefillBid) -> str:
    mark, name = ">" if bid.chosen else " ", f"{bid.node} {bid.address}"
    pulled = f" + {bid.exposed_seconds:.3f} s of a pull" if bid.exposed_seconds else ""
    return (
        f"    {mark} {name:<32} cost {bid.cost:9.3f}: wait {bid.wait_seconds:.3f} s, prefill "
        f"{bid.prefill_seconds:.3f} s behind {bid.usable_tokens} usable tokens{pulled}"
    )


def _pulled(report: m.PullReport) -> list[str]:
    return [
        f"  pulled   {report.tokens} tokens' prefix from here, {report.bytes / 2**20:.1f} MiB in "
        f"{1000 * report.seconds:.1f} ms"
    ]


def _resumed(hit: m.HitBreakdown, part_bytes: Mapping[str, int]) -> list[str]:
    """Return the line of what the hit resumed from: the bytes of each part of its pages and of a
    state slot. part_bytes: of one page and of one slot, by holder and name."""
    if not hit.usable_tokens or not part_bytes:
        return []
    pages = -(-hit.usable_tokens // PAGE_TOKENS)
    sizes: dict[str, list[str]] = {"page": [], "slot": []}
    for name, size in part_bytes.items():
        holder, _, part = name.partition(".")
        count = pages if holder == "page" else 1
        sizes.setdefault(holder, []).append(f"{part} {count * size / 2**20:.2f} MiB")
    texts = {"page": f"{pages} page{'s' * (pages > 1)}", "slot": "a state slot"}
    held = "; ".join(f"{texts[at]}: {', '.join(sizes[at])}" for at in texts if sizes[at])
    return [f"  resumed  {held}"]


def _prompt(hit: m.HitBreakdown) -> list[str]:
    source = f", from the state of a {hit.checkpoint_source}" if hit.checkpoint_source else ""
    lines = [
        f"  prompt   {hit.prompt_tokens} tokens, {hit.kv_tokens} with KV here, "
        f"{hit.usable_tokens} usable{source}",
        _row("usable", hit.usable_tokens, hit.prompt_tokens, "not computed again"),
    ]
    for tier, tokens in hit.loaded.items():
        lines.append(_row(f"loaded_{tier}", tokens, hit.prompt_tokens, "of those, from below"))
    lost = sorted(hit.causes.items(), key=lambda item: -item[1])
    for cause, tokens in lost:
        if tokens:
            lines.append(_row(cause, tokens, hit.prompt_tokens, _MEANING.get(cause, "")))
    if hit.template_changed_at is not None:
        lines.append(
            f"  changed  from token {hit.template_changed_at} on: what was thought may have been "
            "left out (docs/chats.md)"
        )
    return lines


def _row(name: str, tokens: int, prompt: int, meaning: str) -> str:
    bar = "#" * round(_BAR * tokens / prompt)
    return f"    {name:<19}{tokens:>8}  {bar}" + (f"  {meaning}" if meaning else "")


def _transfer(report: m.TransferReport) -> list[str]:
    total = report.hidden_seconds + report.exposed_seconds
    share = f"{100 * report.hidden_seconds / total:.0f}% hidden" if total else "no time"
    return [
        f"  transfer {report.bytes / 2**20:.1f} MiB in {report.windows} layer chunks, "
        f"{report.pages} pages, {share}, {report.exposed_seconds * 1000:.1f} ms after the forward"
    ]


def _lost(lost: m.EvictedCheckpoint) -> list[str]:
    """Return the line about the evicted state needed by the prompt, with the request responsible
    for its eviction."""
    taken = "what took it is forgotten"
    if lost.eviction is not None:
        taken = f"taken by {lost.eviction.taken_by or 'a flush, or a request that is gone'}"
        taken += _worth(lost.eviction)
    return [
        f"  lost     a state of {lost.tokens} tokens, {taken}; "
        f"{lost.slabs_since:.1f} slots were given up since"
    ]


def _took(evictions: Sequence[m.Eviction]) -> list[str]:
    """Return the lines of the cache evictions made for this request, each with its score."""
    lines = []
    for eviction in evictions[:_DECISIONS]:
        kept_for = f" of a {eviction.checkpoint_kind}" if eviction.checkpoint_kind else ""
        lines.append(
            f"    {eviction.kind}{kept_for} at {eviction.tokens} tokens, "
            f"{eviction.slabs:.2f} slots{_worth(eviction)}"
        )
    if len(evictions) > _DECISIONS:
        lines.append(f"    and {len(evictions) - _DECISIONS} more")
    return [f"  took     {len(evictions)} places in the cache", *lines] if lines else []


def _worth(eviction: m.Eviction) -> str:
    return "" if eviction.score is None else f", held to be worth {eviction.score:.2e} a page"


def _life(life: Sequence[pb.LifeMark]) -> list[str]:
    if not life:
        return []
    marks = ((mark.state, mark.at_seconds) for mark in life)
    spans = seconds_by_phase(m.RequestPhase.WAITING.value, marks)
    parts = (f"{phase} {1000 * seconds:.1f} ms" for phase, seconds in spans.items() if seconds)
    return [f"  life     {', '.join(parts)}"]
