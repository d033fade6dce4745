"""Failpoints: named places of the hand-over. A test can have this process killed, hung, slowed or
broken at such a place.

They are off unless the environment variable TASUKI_FAILPOINTS is set when the process starts. It is
read once, here, and no flag, message or file sets it. When off, a place costs one look into an
empty mapping. Format: PLACE[@WINDOW]=ACTION, separated by commas; WINDOW: only at the chunk with
this sequence number; ACTION: kill, hang, raise or delay:SECONDS, as in
`TASUKI_FAILPOINTS=sender.after_post@3=kill,receiver.before_verify=delay:0.5`.

Knows names and processes, nothing of transfers. Thread rule: any thread; an action affects the
thread at the place; kill ends the whole process. Invariant: the armed failpoints never change.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from .errors import TransferError

log = logging.getLogger(__name__)

VARIABLE = "TASUKI_FAILPOINTS"


class Place(Enum):
    """Places of failpoints in the process. The places in CHUNK_PLACES are reached once for each
    layer chunk, those in PIECE_PLACES once for each piece of a picture."""

    SENDER_BEFORE_ACCEPTED = "sender.before_accepted"
    SENDER_AFTER_ACCEPTED = "sender.after_accepted"
    SENDER_ON_PIECE = "sender.on_piece"
    SENDER_ON_GRANT = "sender.on_grant"
    SENDER_BEFORE_POST = "sender.before_post"
    SENDER_AFTER_POST = "sender.after_post"
    SENDER_AFTER_FLUSH = "sender.after_flush"
    SENDER_BEFORE_READY = "sender.before_ready"
    SENDER_AFTER_READY = "sender.after_ready"
    SENDER_BEFORE_DONE = "sender.before_done"
    SENDER_AFTER_DONE = "sender.after_done"
    RECEIVER_BEFORE_RESERVE = "receiver.before_reserve"
    RECEIVER_AFTER_RESERVE = "receiver.after_reserve"
    RECEIVER_AFTER_PIECE = "receiver.after_piece"
    RECEIVER_ON_ACCEPTED = "receiver.on_accepted"
    RECEIVER_ON_GRANT = "receiver.on_grant"
    RECEIVER_AFTER_GRANT = "receiver.after_grant"
    RECEIVER_ON_LANDED = "receiver.on_landed"
    RECEIVER_AFTER_LANDED = "receiver.after_landed"
    RECEIVER_ON_READY = "receiver.on_ready"
    RECEIVER_BEFORE_VERIFY = "receiver.before_verify"
    RECEIVER_BEFORE_COMMIT = "receiver.before_commit"
    RECEIVER_AFTER_COMMIT = "receiver.after_commit"


CHUNK_PLACES: Final = frozenset(
    {
        Place.SENDER_BEFORE_POST,
        Place.SENDER_AFTER_POST,
        Place.SENDER_AFTER_FLUSH,
        Place.RECEIVER_ON_LANDED,
        Place.RECEIVER_AFTER_LANDED,
    }
)


PIECE_PLACES: Final = frozenset({Place.SENDER_ON_PIECE, Place.RECEIVER_AFTER_PIECE})


class Action(Enum):
    KILL = "kill"
    HANG = "hang"
    RAISE = "raise"
    DELAY = "delay"


class FailpointSyntax(TransferError):
    """The environment variable TASUKI_FAILPOINTS cannot be read."""


class FailpointReached(Exception):
    """A place with the action `raise` was reached. It is no TransferError, because it simulates an
    unforeseen defect."""


@dataclass(frozen=True)
class Failpoint:
    """Failure armed at a place. chunk: sequence number of the layer chunk to fail at; None: any
    chunk. seconds: length of a delay."""

    chunk: int | None
    action: Action
    seconds: float = 0.0


def parse(text: str) -> Mapping[Place, Failpoint]:
    """Return the failpoints named by the variable's text, at most one for each place: the last one.
    Raises FailpointSyntax."""
    armed = {}
    for item in filter(None, text.split(",")):
        try:
            place, failpoint = _one(item.strip())
        except ValueError as error:
            raise FailpointSyntax(
                f"{VARIABLE}: {item!r}: {error}; use PLACE[@WINDOW]=kill|hang|raise|delay:SECONDS"
            ) from error
        armed[place] = failpoint
    return MappingProxyType(armed)


def _one(item: str) -> tuple[Place, Failpoint]:
    """Return the place and failpoint of one item, PLACE[@WINDOW]=ACTION. Raises ValueError."""
    where, _, what = item.partition("=")
    name, _, chunk = where.partition("@")
    action, _, seconds = what.partition(":")
    place = Place(name)
    if chunk and place not in CHUNK_PLACES:
        raise ValueError(f"{name} is not reached layer chunk by layer chunk")
    return place, Failpoint(
        int(chunk) if chunk else None, Action(action), float(seconds) if seconds else 0.0
    )


ARMED: Final = parse(os.environ.get(VARIABLE, ""))


def warn_if_armed() -> None:
    """Log a warning if failpoints are armed. Call it once the process's logging is configured."""
    if ARMED:
        places = ", ".join(place.value for place in ARMED)
        log.warning("%s is set: this process will fail at %s", VARIABLE, places)


def reach(place: Place, chunk: int | None = None) -> None:
    """Perform the armed action of `place`, if there is one for this chunk or for any. chunk:
    sequence number of the layer chunk, for a place in CHUNK_PLACES. Raises FailpointReached if the
    action is `raise`."""
    failpoint = ARMED.get(place)
    if failpoint is not None and failpoint.chunk in (None, chunk):
        _act(place, failpoint)


def _act(place: Place, failpoint: Failpoint) -> None:
    log.warning("failpoint %s: %s", place.value, failpoint.action.value)
    match failpoint.action:
        case Action.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case Action.HANG:
            threading.Event().wait()
        case Action.RAISE:
            raise FailpointReached(place.value)
        case Action.DELAY:
            time.sleep(failpoint.seconds)
