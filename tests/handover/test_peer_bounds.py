"""Whatever a peer tells is read, or refused by one type that names it: nothing else is raised, and
nothing without a bound, no number that is none and no control character is kept."""

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

from tasuki.decode_node import handover_messages as decode_wire
from tasuki.engine import messages as m
from tasuki.engine.messages import CAUSES
from tasuki.engine.messages.reports import LOAD_DECLINED, LOAD_FAILED
from tasuki.prefill_node import handover_messages as prefill_wire
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import report_pb2, timeline_pb2
from tasuki.pycache._cpp_cache import PrefixCache, TreeConfig
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid, TransferError
from tasuki.transfer.node_identity import EPOCH_BYTES, metadata_checksum
from tasuki.transfer.protocol.messages import (
    lease_from_wire,
    node_from_wire,
    sender_track_from_wire,
    timeline_from_wire,
    windows_from_wire,
)
from tasuki.transfer.reports import KEPT_WINDOWS, ReceiverTrack
from tasuki.transfer.transports.nixl.peer_metadata import NixlAddress
from tasuki.transfer.transports.nvlink.peer_address import PeerAddress

ROOM = m.RoomId(7)
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
# Words that are right now and then, so that what stands behind them is reached.
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
    """As keyword arguments, nested: any subset of the fields with any values."""
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
    "ready": (pb.Ready, lambda told: decode_wire.ready_from_wire(ROOM, told, "prefill")),
    "done": (pb.Done, lambda told: decode_wire.done_from_wire(ROOM, told, NOWHERE)),
    "pull": (pb.Pull, lambda told: decode_wire.pull_from_wire(ROOM, told)),
    "windows": (pb.Done, lambda told: windows_from_wire(told.windows)),
    "reserve": (pb.Reserve, lambda told: prefill_wire.reserve_from_wire(told, "connection")),
    "grant": (pb.Grant, lambda told: prefill_wire.grant_from_wire(ROOM, told)),
    "node": (pb.Node, node_from_wire),
    "lease": (pb.Connected, lambda told: lease_from_wire(told.lease_seconds)),
    "contract": (pb.ConnectRequest, lambda told: peer_values.contract(told.contract)),
    "track": (timeline_pb2.SenderTrack, sender_track_from_wire),
    "timeline": (timeline_pb2.HandoverTimeline, timeline_from_wire),
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
    except (TransferError, prefill_wire.InvalidReserve) as error:
        assert len(str(error)) < 1000 and str(error).isprintable()
        return
    assert_bounded(kept)


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
    read = decode_wire.ready_from_wire(ROOM, ready(), "prefill")
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
        decode_wire.ready_from_wire(ROOM, ready(**change), "prefill")


@pytest.mark.parametrize("field", ["bytes", "windows", "pages"])
def test_a_transfer_of_more_than_there_is_is_refused(field: str) -> None:
    done = pb.Done()
    setattr(done.report, field, 2**62)
    with pytest.raises(PeerInvalid, match=f"report.{field}"):
        decode_wire.done_from_wire(ROOM, done, NOWHERE)


@pytest.mark.parametrize("told", [math.nan, math.inf, -1.0, 1e9])
def test_an_estimate_that_is_none_is_left_out(told: float) -> None:
    assert decode_wire.ready_from_wire(ROOM, ready(tail_seconds=told), "p").tail_seconds is None


def test_a_lease_that_never_ends_is_refused() -> None:
    """What is lost would stay quarantined for as long: a comparison with NaN never holds."""
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
    read = sender_track_from_wire(track)
    assert len(read.windows) == KEPT_WINDOWS and len(read.phases) == 1
    few = timeline_pb2.SenderTrack(windows=[backwards, good, endless, unfinished])
    assert [w.flushed_at for w in sender_track_from_wire(few).windows] == [3.0]


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
        decode_wire.ready_from_wire(ROOM, told, "prefill")


@pytest.mark.parametrize("field", WRONG)
def test_sampling_that_no_kernel_takes_is_refused_at_the_reserve(field: str) -> None:
    good = {"max_new_tokens": 1, "top_p": 1.0, "repetition_penalty": 1.0}
    sampling = pb.Sampling(**good | {field: WRONG[field]})
    ticket = pb.Ticket(room=1, sampling=sampling)
    prompt = np.zeros(4, dtype="<i4").tobytes()
    with pytest.raises(prefill_wire.InvalidReserve, match=field):
        prefill_wire.reserve_from_wire(pb.Reserve(ticket=ticket, prompt=prompt), "connection")


@pytest.mark.parametrize(("field", "value"), [("salt", b"s"), ("caller", "c")])
def test_a_name_of_whose_prompt_it_is_is_not_endless(field: str, value: bytes | str) -> None:
    def read(length: int) -> object:
        sampling = pb.Sampling(max_new_tokens=1, top_p=1.0, repetition_penalty=1.0)
        ticket = pb.Ticket(room=1, sampling=sampling, **{field: value * length})
        prompt = np.zeros(4, dtype="<i4").tobytes()
        return prefill_wire.reserve_from_wire(
            pb.Reserve(ticket=ticket, prompt=prompt), "connection"
        )

    assert read(4096)
    with pytest.raises(prefill_wire.InvalidReserve, match=field):
        read(4097)


def test_a_message_ends_inside_the_prompt_or_nobody_says_where() -> None:
    def read(**fields: int) -> m.PrefillReserve:
        sampling = pb.Sampling(max_new_tokens=1, top_p=1.0, repetition_penalty=1.0)
        ticket = pb.Ticket(room=1, sampling=sampling, **fields)
        prompt = np.zeros(4, dtype="<i4").tobytes()
        return prefill_wire.reserve_from_wire(
            pb.Reserve(ticket=ticket, prompt=prompt), "connection"
        )

    assert read().ticket.message_end is None, "as of a peer of before"
    assert read(message_end=3).ticket.message_end == 3
    for wrong in (0, 4, 2**32 - 1):
        with pytest.raises(prefill_wire.InvalidReserve, match="message_end"):
            read(message_end=wrong)


def test_a_receiver_of_before_knows_the_kinds_that_it_is_told() -> None:
    """It refuses a report with another one, and with it the hand-over."""
    known = {"prompt_end", "turn_end", "branch", "mark", "interior"}
    eviction = m.Eviction(1, "tail", "message_end", 5, 1.0, None, None)
    lost = m.EvictedCheckpoint(5, 1.0, eviction)
    pages = m.HitBreakdown(9, 4, 4, {"new": 5}, "message_end", lost)
    hit = m.HitBreakdown(9, 4, 4, {"new": 5}, "message_end", lost, pages)
    told = prefill_wire.ready(1, m.PrefillToken(ROOM, 3, -0.5, 1.0, hit), None).ready.hit
    kinds = [told.checkpoint_source, told.in_pages.checkpoint_source]
    kinds += [told.lost.eviction.checkpoint_kind, told.in_pages.lost.eviction.checkpoint_kind]
    assert set(kinds) == {"mark"} <= known


def test_the_causes_are_those_that_a_match_names() -> None:
    tree = PrefixCache(TreeConfig(slabs=4, blocks_per_slab=1, pages_per_slab=1))
    named = set(tree.match(np.zeros(3, dtype=np.int32)).miss_reasons.as_dict())
    # The others are those of a node with a tier (engine/accounting).
    assert named == CAUSES - {LOAD_DECLINED, LOAD_FAILED}
