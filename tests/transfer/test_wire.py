"""A table reads its own output, names every field of both sides, and holds a peer to its bounds."""

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, NamedTuple

import pytest

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import report_pb2, timeline_pb2
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.wire import Codec, Wire, numbered, numbers_of, rows


def cut(value: str, field: str) -> str:
    return value[:2]


at_most_one = partial(peer_values.within, least=0, most=1)


@dataclass(frozen=True)
class Eviction:
    sequence: int
    kind: str
    checkpoint_kind: str | None
    tokens: int
    slabs: float
    score: Annotated[float, at_most_one] | None
    taken_by: Annotated[str, cut] | None


@dataclass(frozen=True)
class Lost:
    """A record with another name for its tokens, and a note without a field on the wire."""

    note: str
    length: int
    slabs_since: float
    eviction: Eviction | None = None


class Pulled(NamedTuple):
    tokens: int
    bytes: int
    seconds: peer_values.Seconds


@dataclass(frozen=True)
class Route:
    choice: str
    estimates: dict[str, float]


class Step(Enum):
    ACCEPTED = "accepted"
    READY = "ready"
    LATER = "later"


@dataclass(frozen=True)
class Mark:
    phase: Step
    at: float


@dataclass(frozen=True)
class Track:
    phases: tuple[Mark, ...]


EVICTION = Wire(Eviction, report_pb2.Eviction)
LOST = Wire(
    Lost, report_pb2.LostState, apart=["note"], length=Codec(name="tokens"), eviction=EVICTION
)
PULLED = Wire(Pulled, report_pb2.Pulled)
MARK = Wire(
    Mark,
    timeline_pb2.PhaseMark,
    phase=numbered(Step, timeline_pb2.Phase, otherwise=Step.ACCEPTED),
)
TRACK = Wire(Track, timeline_pb2.SenderTrack, apart=["windows"], phases=MARK)

WHOLE = Eviction(7, "checkpoint", "turn_end", 640, 1.5, 0.25, "thief")
BARE = Eviction(8, "pages", None, 64, 0.5, None, None)


@pytest.mark.parametrize("value", [WHOLE, BARE])
def test_a_value_comes_back_with_what_it_lacks(value: Eviction) -> None:
    message = EVICTION.to_wire(value)
    assert message.HasField("score") == (value.score is not None)
    assert EVICTION.from_wire(message) == value


@pytest.mark.parametrize("eviction", [WHOLE, None])
def test_a_message_inside_comes_back_and_what_is_apart_is_given(eviction: Eviction | None) -> None:
    value = Lost("given", 64, 0.5, eviction)
    message = LOST.to_wire(value)
    assert message.tokens == 64 and message.HasField("eviction") == (eviction is not None)
    assert LOST.from_wire(message, note="given") == value


def test_named_tuples_maps_and_repeated_messages_come_back() -> None:
    assert PULLED.from_wire(PULLED.to_wire(Pulled(1, 2, 0.5))) == Pulled(1, 2, 0.5)
    route = Wire(Route, report_pb2.Route)
    assert route.from_wire(route.to_wire(Route("here", {"here": 0.5}))) == Route(
        "here", {"here": 0.5}
    )
    track = Track((Mark(Step.ACCEPTED, 0.5), Mark(Step.READY, 1.5)))
    assert TRACK.from_wire(TRACK.to_wire(track)) == track


def test_rows_are_plain_tuples() -> None:
    codec = rows(pb.TokenLogprob, "token", "logprob")
    assert codec.read is not None and codec.write is not None
    written = codec.write(((3, -0.5), (4, -1.5)))
    assert written == [
        pb.TokenLogprob(token=3, logprob=-0.5),
        pb.TokenLogprob(token=4, logprob=-1.5),
    ]
    assert codec.read(written) == ((3, -0.5), (4, -1.5))


def test_an_enum_goes_by_its_names() -> None:
    """A member without a number, and a number without a member, are the other member's."""
    assert numbers_of(Step, timeline_pb2.Phase) == {
        Step.ACCEPTED: timeline_pb2.PHASE_ACCEPTED,
        Step.READY: timeline_pb2.PHASE_READY,
    }
    mark = timeline_pb2.PhaseMark(at=0.5)
    mark.phase = 77  # type: ignore[assignment]
    assert MARK.from_wire(mark) == Mark(Step.ACCEPTED, 0.5)
    assert MARK.to_wire(Mark(Step.LATER, 0.5)).phase == timeline_pb2.PHASE_ACCEPTED
    strict = numbered(Step, timeline_pb2.Phase)
    assert strict.read is not None and strict.write is not None
    with pytest.raises(KeyError):
        strict.read(77)
    with pytest.raises(KeyError):
        strict.write(Step.LATER)


def test_the_first_bound_that_does_not_hold_names_its_field() -> None:
    few = partial(peer_values.count, most=99)
    peers = PULLED.bounded("pulled", tokens=few)
    assert peers.from_wire(report_pb2.Pulled(tokens=99, seconds=1.0)) == Pulled(99, 0, 1.0)
    with pytest.raises(PeerInvalid, match=r"^pulled\.tokens 100 is not in \[0, 99\]$"):
        peers.from_wire(report_pb2.Pulled(tokens=100, seconds=float("nan")))
    with pytest.raises(PeerInvalid, match=r"^pulled\.seconds nan is not in \[0, 86400\]$"):
        peers.from_wire(report_pb2.Pulled(seconds=float("nan")))
    read = PULLED.from_wire(report_pb2.Pulled(tokens=100, seconds=-1.0))
    assert read == Pulled(100, 0, -1.0), "no peer's"


def test_a_bound_holds_inside_and_not_where_nothing_is() -> None:
    peers = LOST.bounded("lost", eviction=EVICTION.bounded("eviction"))
    assert peers.from_wire(LOST.to_wire(Lost("", 1, 0.5, BARE)), note="") == Lost("", 1, 0.5, BARE)
    assert peers.from_wire(report_pb2.LostState(), note="").eviction is None
    read = peers.from_wire(LOST.to_wire(Lost("", 1, 0.5, WHOLE)), note="")
    assert read.eviction is not None and read.eviction.taken_by == "th"
    with pytest.raises(PeerInvalid, match=r"^eviction\.score 2.0"):
        peers.from_wire(report_pb2.LostState(eviction=report_pb2.Eviction(score=2.0)), note="")


def test_a_judge_has_the_whole_value() -> None:
    def judge(pulled: Pulled) -> Pulled:
        if pulled.bytes < pulled.tokens:
            raise PeerInvalid("fewer bytes than tokens")
        return pulled._replace(seconds=9.0)

    peers = PULLED.bounded("pulled", judge)
    assert peers.from_wire(report_pb2.Pulled(tokens=1, bytes=1)).seconds == 9.0
    with pytest.raises(PeerInvalid, match="fewer bytes"):
        peers.from_wire(report_pb2.Pulled(tokens=1))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: Wire(Pulled, report_pb2.Route), "Route has no field for Pulled.tokens"),
        (lambda: Wire(Mark, timeline_pb2.SentWindow, ["phase", "at"]), "bytes"),
        (lambda: Wire(Pulled, report_pb2.Pulled, extent=Codec()), "extent"),
        (lambda: Wire(Pulled, report_pb2.Pulled, ["extent"]), "extent"),
        (lambda: Wire(Lost, report_pb2.LostState, ["note", "length", "tokens"]), "Lost.eviction"),
        (lambda: PULLED.bounded("pulled", extent=cut), "extent"),
    ],
    ids=["no-field", "unread", "no-pair", "strange", "no-codec", "no-bound"],
)
def test_a_table_without_an_entry_is_refused(build: object, named: str) -> None:
    assert callable(build)
    with pytest.raises(TypeError, match=named):
        build()


def test_what_only_one_side_may_lack_is_refused() -> None:
    @dataclass
    class Always:
        sequence: int
        kind: str
        checkpoint_kind: str
        tokens: int
        slabs: float
        score: float
        taken_by: str

    with pytest.raises(TypeError, match=r"Always\.checkpoint_kind"):
        Wire(Always, report_pb2.Eviction)

    @dataclass
    class Maybe:
        tokens: int | None
        bytes: int
        seconds: float

    with pytest.raises(TypeError, match=r"Maybe\.tokens"):
        Wire(Maybe, report_pb2.Pulled)
