"""Every message of a peer is read, or rejected with one error type that names the peer. No other
error is raised. No unbounded value, no NaN and no control character is kept."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache

import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.engine.messages import CAUSES, proto
from tasuki.engine.messages import transfer_proto as wire
from tasuki.engine.messages.reports import LOAD_DECLINED, LOAD_FAILED
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import report_pb2, timeline_pb2
from tasuki.pycache._cpp_cache import PrefixCache, TreeConfig
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid, TransferError
from tasuki.transfer.node_identity import EPOCH_BYTES, metadata_checksum
from tasuki.transfer.protocol import messages as transfer_messages
from tasuki.transfer.protocol.messages import (
    SENDER_TRACK,
    TIMELINE,
    chunks_from_wire,
    lease_from_wire,
    node_from_wire,
)
from tasuki.transfer.reports import KEPT_CHUNKS, ReceiverTrack
from tasuki.transfer.transports.nixl.peer_metadata import NixlAddress
from tasuki.transfer.transports.nvlink.peer_address import PeerAddress
from tasuki.transfer.wire import Wire

TRANSFER_ID = m.TransferId(7)
NOWHERE = ReceiverTrack((), (), ())
_MAY_BE_INFINITE = ("margin", "score")

_RANGES = {
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_FIXED64: (0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_ENUM: (0, 9),
}
# Some words are right, so checks after them are reached.
_WORDS = st.sampled_from(
    [*sorted(CAUSES), "here", "there", "pull", "tail", "pages", "prompt_end", "a\nb", "\x1b[2J", ""]
) | st.text(max_size=300)
_NUMBERS = st.floats(width=64) | st.sampled_from([0.0, 1.5, math.nan, math.inf, -1.0, 1e300])


def value(field: FieldDescriptor) -> st.SearchStrategy[object]:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return message(field.message_type)
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return _NUMBERS
    if field.type == FieldDescriptor.TYPE_STRING:
        return _WORDS
    if field.type == FieldDescriptor.TYPE_BYTES:
        return st.binary(max_size=64)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    least, most = _RANGES[field.type]
    return st.sampled_from([least, 1, most]) | st.integers(least, most)


@cache
def message(descriptor: Descriptor) -> st.SearchStrategy[dict[str, object]]:
    """Return nested keyword arguments of a message: any subset of its fields with any values."""
    optional = {}
    for field in descriptor.fields:
        if field.message_type is descriptor:
            # One of its own kind: the reader is to look no deeper than one.
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name
            made: st.SearchStrategy[object] = st.dictionaries(
                value(entry["key"]), value(entry["value"]), max_size=4
            )
        elif field.is_repeated:
            made = st.lists(value(field), max_size=4)
        else:
            made = value(field)
        optional[field.name] = made
    return st.fixed_dictionaries({}, optional=optional)


def assert_bounded(kept: object, name: str = "") -> None:
    if isinstance(kept, Enum | bool | None):
        return
    if is_dataclass(kept):
        for item in fields(kept):
            assert_bounded(getattr(kept, item.name), item.name)
    elif isinstance(kept, float):
        assert not math.isnan(kept) and (math.isfinite(kept) or name in _MAY_BE_INFINITE), name
    elif isinstance(kept, int):
        assert abs(kept) < 2**64, name
    elif isinstance(kept, str):
        assert len(kept) <= peer_values.LONGEST_REASON and kept.isprintable(), (name, kept)
    elif isinstance(kept, Mapping):
        assert len(kept) <= peer_values.MOST_FIELDS
        for key, item in kept.items():
            assert_bounded(key, name)
            assert_bounded(item, name)
    elif isinstance(kept, tuple | list):
        assert len(kept) <= 1 << 20
        for item in kept:
            assert_bounded(item, name)
    else:
        assert isinstance(kept, bytes | np.ndarray), type(kept)


READERS: dict[str, tuple[type[Message], Callable[..., object]]] = {
    "ready": (pb.Ready, lambda told: wire.ready_from_wire(TRANSFER_ID, told, "prefill")),
    "done": (pb.Done, lambda told: wire.done_from_wire(TRANSFER_ID, told, NOWHERE)),
    "pull": (pb.Pull, lambda told: wire.PULL.from_wire(told, transfer_id=TRANSFER_ID)),
    "windows": (pb.Done, lambda told: chunks_from_wire(told.windows)),
    "reserve": (pb.Reserve, lambda told: wire.reserve_from_wire(told, "connection")),
    "fetch": (pb.Fetch, lambda told: wire.fetch_from_wire(TRANSFER_ID, told, "connection")),
    "state": (pb.TakeOverResponse, wire.left_state_from_wire),
    "taken": (pb.TakenOver, wire.TAKEN_OVER.from_wire),
    "grant": (pb.Grant, lambda told: wire.GRANT.from_wire(told, transfer_id=TRANSFER_ID)),
    "node": (pb.Node, node_from_wire),
    "lease": (pb.Connected, lambda told: lease_from_wire(told.lease_seconds)),
    "contract": (pb.ConnectRequest, lambda told: peer_values.contract(told.contract)),
    "track": (timeline_pb2.SenderTrack, SENDER_TRACK.from_wire),
    "timeline": (timeline_pb2.HandoverTimeline, TIMELINE.from_wire),
}


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_message_is_read_with_bounds_or_refused_by_type(
    reader: str, data: st.DataObject
) -> None:
    kind, read = READERS[reader]
    told = kind(**data.draw(message(kind.DESCRIPTOR)))
    if isinstance(told, pb.Node):
        told.epoch = bytes(EPOCH_BYTES)
        told.transport_checksum = metadata_checksum(told.transport_metadata)
    try:
        kept = read(told)
    except (TransferError, wire.InvalidReserve) as error:
        assert len(str(error)) < 1000 and str(error).isprintable()
        return
    assert_bounded(kept)


APART: dict[str, dict[str, object]] = {
    "EVENT": {"checkpoint_kind": None, "page": ()},
    "FINISHED": {"request_id": "me"},
    "GRANT": {"transfer_id": TRANSFER_ID},
    "PULL": {"transfer_id": TRANSFER_ID},
}
"""Fields missing in a table, with the values given by the caller of its reader."""
TABLES = {
    name: table
    for module in (proto, wire, transfer_messages)
    for name, table in vars(module).items()
    if isinstance(table, Wire) and not name.startswith("_")
}


@pytest.mark.parametrize("name", TABLES)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_a_table_writes_is_read_as_it_was(name: str, data: st.DataObject) -> None:
    table, apart = TABLES[name], APART.get(name, {})
    told = table.message(**data.draw(message(table.message.DESCRIPTOR)))
    try:
        sent = table.to_wire(table.from_wire(told, **apart))
    except (TransferError, ValueError, KeyError):
        return
    again = table.to_wire(table.from_wire(sent, **apart))
    # Compared as bytes, since NaN is not equal to itself.
    assert again.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)


@pytest.mark.parametrize("unpack", [NixlAddress.unpack, PeerAddress.unpack])
@settings(max_examples=150, deadline=None)
@given(metadata=st.binary(max_size=200) | st.text(max_size=99).map(str.encode))
def test_any_metadata_are_read_or_refused_by_type(
    unpack: Callable[[bytes], object], metadata: bytes
) -> None:
    with pytest.raises(TransferError):
        unpack(metadata)


def ready(**changed: object) -> pb.Ready:
    hit = report_pb2.HitBreakdown(
        prompt_tokens=9, usable_tokens=4, causes={"new": 5}, checkpoint_source="turn_end"
    )
    eviction = report_pb2.Eviction(kind="tail")
    hit.lost.CopyFrom(report_pb2.LostState(tokens=3, slabs_since=1.5, eviction=eviction))
    whole = pb.Ready(
        token=3,
        logprob=-0.5,
        margin=math.inf,
        hit=hit,
        pulled=report_pb2.Pulled(tokens=2, bytes=64, seconds=0.1),
        route=report_pb2.Route(choice="there", estimates={"here": 0.5, "there": 0.25}),
        tail_seconds=0.5,
    )
    for path, value in changed.items():
        *parents, name = path.split("__")
        target: Message = whole
        for parent in parents:
            target = getattr(target, parent)
        if isinstance(value, dict):
            getattr(target, name).clear()
            getattr(target, name).update(value)
        else:
            setattr(target, name, value)
    return whole


def test_what_makes_sense_is_read_as_it_is() -> None:
    read = wire.ready_from_wire(TRANSFER_ID, ready(), "prefill")
    assert read.hit.causes == {"new": 5} and read.hit.checkpoint_source == "turn_end"
    assert read.hit.lost is not None and read.hit.lost.slabs_since == 1.5
    assert read.route == m.RouteReport("there", {"here": 0.5, "there": 0.25})
    assert read.pulled == m.PullReport(2, 64, 0.1) and read.tail_seconds == 0.5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"logprob": math.nan}, "ready.logprob"),
        ({"margin": math.nan}, "ready.margin"),
        ({"hit__causes": {"new": 4}}, "hit of 9 tokens"),
        ({"hit__causes": {"because": 5}}, "hit.causes 'because'"),
        ({"hit__in_pages__prompt_tokens": 9}, "hit of 9 tokens"),
        ({"hit__causes": {"new": 6, "alignment": -1}}, r"hit.causes\[alignment\]"),
        ({"hit__loaded": {"moon": 1}}, "hit.loaded 'moon'"),
        ({"hit__loaded": {"host": -1}}, r"hit.loaded\[host\]"),
        ({"hit__loaded": {"host": 9}}, "has 9 loaded ones"),
        ({"hit__kv_tokens": -1}, "hit.kv_tokens"),
        ({"hit__prompt_tokens": 2**40}, "hit.prompt_tokens"),
        ({"hit__lost__tokens": 2**40}, "lost.tokens"),
        ({"hit__lost__eviction__tokens": -1}, "eviction.tokens"),
        ({"pulled__tokens": -1}, "pulled.tokens"),
        ({"hit__checkpoint_source": "x" * 9999}, "hit.checkpoint_source"),
        ({"hit__lost__slabs_since": math.nan}, "lost.slabs_since"),
        ({"hit__lost__eviction__kind": "\n"}, "eviction.kind"),
        ({"hit__lost__eviction__score": math.nan}, "eviction.score"),
        ({"hit__lost__eviction__slabs": math.inf}, "eviction.slabs"),
        ({"pulled__seconds": -1.0}, "pulled.seconds"),
        ({"pulled__bytes": 2**63}, "pulled.bytes"),
        ({"route__choice": "nowhere"}, "route.choice"),
        ({"route__estimates": {"here": math.nan}}, r"route.estimates\[here\]"),
        ({"route__estimates": {str(n): 0.0 for n in range(9)}}, "route.estimates"),
    ],
    ids=lambda item: "" if isinstance(item, str) else "-".join(item),
)
def test_what_makes_none_is_refused_by_its_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(PeerInvalid, match=named):
        wire.ready_from_wire(TRANSFER_ID, ready(**change), "prefill")


def state(**fields: object) -> pb.TakeOverResponse:
    return pb.TakeOverResponse(state=pb.LeftState(**{"tokens": bytes(4)} | fields))


def node(**fields: object) -> pb.Node:
    checksum = metadata_checksum(b"")
    process = pb.Process(**fields)
    return pb.Node(epoch=bytes(EPOCH_BYTES), transport_checksum=checksum, process=process)


def done(**fields: object) -> pb.Done:
    return pb.Done(report=report_pb2.TransferReport(**fields))


def asked(prompt: int = 4, **fields: object) -> pb.Reserve:
    """Return a message with this prompt, as tokens."""
    return pb.Reserve(ticket=pb.Ticket(**{"room": 1} | fields), prompt=bytes(4 * prompt))


@pytest.mark.parametrize(
    ("reader", "told", "text"),
    [
        ("state", state(tokens=b""), "state.tokens has 0 bytes, four make a token"),
        ("state", state(tokens=b"abc"), "state.tokens has 3 bytes, four make a token"),
        ("state", state(salt=bytes(4097)), "bytes of state.salt 4097 is not in [0, 4096]"),
        ("taken", pb.TakenOver(bytes=2**51), f"done.bytes {2**51} is not in [0, {2**50}]"),
        ("taken", pb.TakenOver(heir="\n"), "done.heir '\ufffd' is no name: at most 128 printable"),
        ("node", node(pid=2**23), f"node.process.pid {2**23} is not in [0, {2**22}]"),
        ("node", node(boot_id="\n"), "node.process.boot_id '\ufffd' is no name: at most 128"),
        ("done", done(hidden_seconds=math.nan), "report.hidden_seconds nan is not in [0, 86400]"),
        ("done", done(exposed_seconds=-1), "report.exposed_seconds -1.0 is not in [0, 86400]"),
        ("ready", ready(hit__template_changed_at=1), "hit.template_changed_at is no peer's field"),
        ("ready", ready(margin=math.nan), "ready.margin nan is not in [-inf, inf]"),
        (
            "ready",
            ready(hit__lost__eviction__checkpoint_kind="moon"),
            "eviction.checkpoint_kind 'moon' is unknown here",
        ),
        ("reserve", asked(room=0), "ticket.room 0 is not in [1, 2^63)"),
        ("reserve", asked(generation=2**63), f"ticket.generation {2**63} is not in [0, 2^63)"),
        ("reserve", asked(0), "prompt is empty: give at least one token"),
        ("reserve", asked(offered=4), "ticket.offered 4 is not less than the prompt's 4"),
        ("reserve", asked(marks=[1] * 5), "ticket.marks has 5 of 4 tokens"),
        ("reserve", asked(), "ticket.sampling: max_new_tokens must be at least 1 in a hand-over"),
        (
            "reserve",
            asked(sampling=pb.Sampling(max_new_tokens=2**32 - 1)),
            "ticket.sampling: max_new_tokens must be at most",
        ),
        ("fetch", pb.Fetch(tokens=b"abc"), "tokens has 3 bytes, four make a token"),
        ("fetch", pb.Fetch(tokens=bytes(4), salt=bytes(4097)), "salt has 4097 bytes, at most 4096"),
    ],
)
def test_a_refusal_says_what_is_wrong(reader: str, told: Message, text: str) -> None:
    with pytest.raises((PeerInvalid, wire.InvalidReserve)) as raised:
        READERS[reader][1](told)
    assert str(raised.value).startswith(text)


def test_what_took_a_state_is_shown_and_not_believed() -> None:
    told = ready(hit__lost__eviction__taken_by="a\nb" + "x" * 999)
    lost = wire.ready_from_wire(TRANSFER_ID, told, "prefill").hit.lost
    assert lost is not None and lost.eviction is not None
    assert lost.eviction.taken_by is not None and len(lost.eviction.taken_by) == 256
    assert lost.eviction.taken_by.isprintable()


@pytest.mark.parametrize("field", ["bytes", "windows", "pages"])
def test_a_transfer_of_more_than_there_is_is_refused(field: str) -> None:
    done = pb.Done()
    setattr(done.report, field, 2**62)
    with pytest.raises(PeerInvalid, match=f"report.{field}"):
        wire.done_from_wire(TRANSFER_ID, done, NOWHERE)


@pytest.mark.parametrize("told", [math.nan, math.inf, -1.0, 1e9])
def test_an_estimate_that_is_none_is_left_out(told: float) -> None:
    assert wire.ready_from_wire(TRANSFER_ID, ready(tail_seconds=told), "p").tail_seconds is None


def test_a_lease_that_never_ends_is_refused() -> None:
    """Lost ids would stay quarantined for ever, because a comparison with NaN is always false."""
    for told in (math.nan, math.inf, -1.0, 1e6):
        with pytest.raises(PeerInvalid, match="lease_seconds"):
            lease_from_wire(told)
    assert lease_from_wire(2.0) == 2.0


def test_a_track_keeps_no_moment_that_is_none() -> None:
    good = timeline_pb2.SentWindow(layers_finished=[0.5], begun_at=1, posted_at=2, flushed_at=3)
    backwards = timeline_pb2.SentWindow(layers_finished=[0.5], begun_at=3, posted_at=2)
    endless = timeline_pb2.SentWindow(flushed_at=math.inf)
    unfinished = timeline_pb2.SentWindow(layers_finished=[math.nan])
    phases = [timeline_pb2.PhaseMark(phase=1, at=n / 10) for n in range(999)]
    track = timeline_pb2.SenderTrack(
        windows=[backwards, endless, unfinished, *[good] * 999], phases=phases
    )
    read = SENDER_TRACK.from_wire(track)
    assert len(read.windows) == KEPT_CHUNKS and len(read.phases) == 1
    few = timeline_pb2.SenderTrack(windows=[backwards, good, endless, unfinished])
    assert [w.flushed_at for w in SENDER_TRACK.from_wire(few).windows] == [3.0]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "x" * 129, "\u202egnp"])
def test_a_name_that_could_forge_a_line_is_refused(name: str) -> None:
    node = pb.Node(name=name, epoch=bytes(EPOCH_BYTES), transport_checksum=metadata_checksum(b""))
    with pytest.raises(PeerInvalid, match=r"node\.name") as raised:
        node_from_wire(node)
    assert str(raised.value).isprintable()


WRONG: dict[str, object] = {
    "top_k": 2**31,
    "temperature": math.inf,
    "stop_token_ids": [1] * 9999,
    "min_p": math.nan,
    "presence_penalty": math.inf,
    "frequency_penalty": -3.0,
    "repetition_penalty": 0.0,
    "logit_bias": [pb.TokenBias(token=1, bias=math.nan)],
    "min_tokens": 2,
    "bad_words": [pb.TokenSequence(ids=[1] * 65)],
    "allowed_token_ids": [1] * (2**14 + 1),
    "top_logprobs": 21,
    "thinking": pb.ThinkingBudget(most=1, closing=[3], tag=4),
}


@pytest.mark.parametrize("top", [[(1, -0.5)] * 21, [(1, math.nan)], [(-1, -0.5)]], ids=str)
def test_the_likeliest_tokens_of_a_peer_are_bounded(top: list[tuple[int, float]]) -> None:
    told = pb.Ready(top=[pb.TokenLogprob(token=token, logprob=value) for token, value in top])
    with pytest.raises(PeerInvalid, match=r"ready\.top"):
        wire.ready_from_wire(TRANSFER_ID, told, "prefill")


@pytest.mark.parametrize("field", WRONG)
def test_sampling_that_no_kernel_takes_is_refused_at_the_reserve(field: str) -> None:
    good = {"max_new_tokens": 1, "top_p": 1.0, "repetition_penalty": 1.0}
    sampling = pb.Sampling(**good | {field: WRONG[field]})
    transfer_request = pb.Ticket(room=1, sampling=sampling)
    prompt = np.zeros(4, dtype="<i4").tobytes()
    with pytest.raises(wire.InvalidReserve, match=field):
        wire.reserve_from_wire(pb.Reserve(ticket=transfer_request, prompt=prompt), "connection")


@pytest.mark.parametrize(("field", "value"), [("salt", b"s"), ("caller", "c")])
def test_a_name_of_whose_prompt_it_is_is_not_endless(field: str, value: bytes | str) -> None:
    def read(length: int) -> object:
        sampling = pb.Sampling(max_new_tokens=1, top_p=1.0, repetition_penalty=1.0)
        transfer_request = pb.Ticket(room=1, sampling=sampling, **{field: value * length})
        prompt = np.zeros(4, dtype="<i4").tobytes()
        return wire.reserve_from_wire(
            pb.Reserve(ticket=transfer_request, prompt=prompt), "connection"
        )

    assert read(4096)
    with pytest.raises(wire.InvalidReserve, match=field):
        read(4097)


def test_a_message_ends_inside_the_prompt_or_nobody_says_where() -> None:
    def read(**fields: int) -> m.PrefillReserve:
        sampling = pb.Sampling(max_new_tokens=1, top_p=1.0, repetition_penalty=1.0)
        transfer_request = pb.Ticket(room=1, sampling=sampling, **fields)
        prompt = np.zeros(4, dtype="<i4").tobytes()
        return wire.reserve_from_wire(
            pb.Reserve(ticket=transfer_request, prompt=prompt), "connection"
        )

    assert read().transfer_request.message_end is None, "as of a peer of before"
    assert read(message_end=3).transfer_request.message_end == 3
    for wrong in (0, 4, 2**32 - 1):
        with pytest.raises(wire.InvalidReserve, match="message_end"):
            read(message_end=wrong)


def test_a_receiver_of_before_knows_the_kinds_that_it_is_told() -> None:
    """An older receiver rejects a report with an unknown kind, and with it the hand-over."""
    known = {"prompt_end", "turn_end", "branch", "mark", "interior"}
    eviction = m.Eviction(1, "tail", "message_end", 5, 1.0, None, None)
    lost = m.EvictedCheckpoint(5, 1.0, eviction)
    pages = m.HitBreakdown(9, 4, 4, {"new": 5}, "message_end", lost)
    hit = m.HitBreakdown(9, 4, 4, {"new": 5}, "message_end", lost, pages)
    told = wire.ready(1, m.PrefillToken(TRANSFER_ID, 3, -0.5, 1.0, hit), None).ready.hit
    kinds = [told.checkpoint_source, told.in_pages.checkpoint_source]
    kinds += [told.lost.eviction.checkpoint_kind, told.in_pages.lost.eviction.checkpoint_kind]
    assert set(kinds) == {"mark"} <= known


def test_the_causes_are_those_that_a_match_names() -> None:
    tree = PrefixCache(TreeConfig(slabs=4, blocks_per_slab=1, pages_per_slab=1))
    named = set(tree.match(np.zeros(3, dtype=np.int32)).miss_reasons.as_dict())
    # The others are those of a node with a tier (engine/accounting).
    assert named == CAUSES - {LOAD_DECLINED, LOAD_FAILED}
