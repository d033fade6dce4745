"""A decode node that lies about the files of pictures, at a real prefill daemon with a tower.

Each lie gets a typed refusal, and its transfer ends in bounded time. The next prompt with the same
picture under the same salt has its golden answer.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from queue import SimpleQueue

import grpc
import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.engine.messages.picture_wire import runs_to_wire
from tasuki.prefill_node.arriving_pictures import PIECE_BYTES
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.keys import KeyedRun, PromptTokens, prompt_keys
from tasuki.pycache.layout import CacheLayout
from tasuki.server.auth.tenants import salt_of
from tests.handover.test_picture_daemons import BLIND, answering, is_golden, seeing
from tests.harness.covering import slow_behind
from tests.harness.daemons import Node, fleet
from tests.harness.picture_answers import FOLDER
from tests.harness.picture_goldens import needs_goldens
from tests.harness.picture_prompts import file_submit
from tests.harness.rogue_receiver import SLABS, SeeingRogue
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import HANG_SECONDS

pytestmark = [needs_goldens, needs_nixl]

CASE = "middle"
GENERATION = 7
NIXL = ("--transport", "nixl")
Pieces = Callable[[bytes], Iterator[pb.PicturePiece]]
File = Callable[[m.PictureFile], m.PictureFile]


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    with fleet() as start:
        prefill = seeing(start, *NIXL)
        decode = answering(start, prefill, more=(*BLIND, *NIXL))
        yield prefill, decode
        prefill.assert_at_rest()
        decode.assert_at_rest()


@cache
def layout() -> CacheLayout:
    config = EngineConfig(model=str(FOLDER), dtype="float32", arena_mib=16)
    return build_parts(config).layout


@pytest.fixture(scope="module")
def rogue(nodes: tuple[Node, Node]) -> Iterator[SeeingRogue]:
    with closing(SeeingRogue(nodes[0], layout())) as found:
        yield found


def destination() -> pb.Grant:
    """Return two pages in slabs of their own, and a slot in another."""
    blocks, each = layout().blocks_per_slab, layout().pages_per_slab
    pages = [slab * blocks + page for slab in range(SLABS - 1) for page in range(each)]
    return pb.Grant(generation=GENERATION, pages=pages[:2], slot=SLABS - 1)


def pieces_of(content: bytes, length: int | None = None) -> Iterator[pb.PicturePiece]:
    """Yield a file in pieces. length: its announced number of bytes; None: the true one."""
    for start in range(0, len(content), PIECE_BYTES):
        data = content[start : start + PIECE_BYTES]
        yield pb.PicturePiece(length=len(content) if length is None else length, data=data)


def silent(content: bytes) -> Iterator[pb.PicturePiece]:
    """Yield the first piece of a longer file, then nothing within the call's time."""
    yield pb.PicturePiece(length=2 * PIECE_BYTES, data=bytes(PIECE_BYTES))
    SimpleQueue[None]().get(timeout=HANG_SECONDS)


def true(file: m.PictureFile) -> m.PictureFile:
    return file


def another_size(file: m.PictureFile) -> m.PictureFile:
    return replace(file, height=file.height + 1)


def far_larger(file: m.PictureFile) -> m.PictureFile:
    return replace(file, height=1 << 20, width=1 << 20)


@dataclass(frozen=True)
class Lie:
    """pieces: sent for a picture's file. refused: part of the call's refusal; empty: taken. closed:
    part of the transfer's end. file: changes the announced file."""

    pieces: Pieces
    refused: str
    closed: str
    file: File = true


LIES = {
    "another digest": Lie(lambda b: pieces_of(bytes(len(b))), *["another digest"] * 2),
    "another size": Lie(pieces_of, "", "is refused: ", another_size),
    "too large a size": Lie(pieces_of, "", "is refused: ", far_larger),
    "cut off": Lie(lambda b: pieces_of(b[:-9]), *["another digest"] * 2),
    "cut off in its call": Lie(
        lambda b: pieces_of(bytes(PIECE_BYTES), 2 * PIECE_BYTES), *["before the last piece"] * 2
    ),
    "more bytes": Lie(lambda b: pieces_of(b + b"more", len(b)), *["of the file are left"] * 2),
    "fewer bytes": Lie(lambda b: pieces_of(b[:9], len(b)), *["of the file are left"] * 2),
    "no bytes": Lie(lambda b: iter([pb.PicturePiece()]), *["a picture of 0 bytes"] * 2),
    "never sent": Lie(silent, *["no piece of a picture came"] * 2),
    "never begun": Lie(lambda b: iter(()), "no pictures are asked for", "pieces are awaited"),
}


def opening_of(rogue: SeeingRogue, salt: bytes, file: File) -> tuple[pb.ReceiverMessage, bytes]:
    """Return the reserve of a golden prompt, and its picture's bytes. file: changes the announced
    file."""
    message = file_submit("vision-dense", CASE)
    (one,) = message.pictures
    assert one.file is not None
    content = one.file.content()
    opening = rogue.reserve(salt=salt, generation=GENERATION)
    run = KeyedRun(one.start, one.rows * one.columns, one.digest)
    keys = prompt_keys(PromptTokens(message.prompt), [run])
    opening.reserve.prompt = keys.astype("<i4").tobytes()
    lied = replace(one, file=file(one.file))
    opening.reserve.pictures.extend(runs_to_wire([lied]))
    return opening, content


def told(rogue: SeeingRogue, lie: Lie, salt: bytes) -> tuple[list[pb.SenderMessage], str]:
    """Run a transfer with a lie to its end. Return all messages, and the refusal of the files."""
    opening, content = opening_of(rogue, salt, lie.file)
    answers: SimpleQueue[pb.ReceiverMessage | None] = SimpleQueue()
    answers.put(opening)
    heard, refused = [], ""
    for message in rogue.transfers(iter(answers.get, None)):
        heard.append(message)
        match message.WhichOneof("message"):
            case "pictures_wanted":
                assert list(message.pictures_wanted.pictures) == [0]
                pieces = head_first(lie.pieces(content), opening.room)
                error = rogue.send_pieces(pieces)
                refused = "" if error is None else error.details()
                assert error is None or error.code() in REFUSED
            case "accepted":
                answers.put(pb.ReceiverMessage(grant=destination()))
            case "closed":
                answers.put(None)
    return heard, refused


REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


def head_first(pieces: Iterator[pb.PicturePiece], room: int) -> Iterator[pb.PicturePiece]:
    for piece in pieces:
        piece.room, piece.generation = room, GENERATION
        yield piece


@pytest.mark.parametrize("name", slow_behind(len(LIES) - 2, {name: name for name in LIES}))
def test_a_lie_is_refused_and_changes_no_answer(
    nodes: tuple[Node, Node], rogue: SeeingRogue, name: str
) -> None:
    prefill, decode = nodes
    lie = LIES[name]
    heard, refused = told(rogue, lie, salt_of(None, name.encode()))
    assert lie.refused in refused and bool(lie.refused) == bool(refused), heard
    ends = [message for message in heard if message.WhichOneof("message") in ("refused", "failed")]
    assert heard[-1].HasField("closed")
    assert any(lie.closed in str(message) for message in (*ends, heard[-1])), heard
    assert not any(message.HasField("done") for message in heard)
    prefill.assert_at_rest()
    is_golden(decode, CASE, name)
