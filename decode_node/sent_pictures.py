"""Pictures of a prompt, sent to the prefill node that computes their rows.

One call for each ask, with pieces of 256 KiB. The prefill node's reading sets the pace, so no more
than a few pieces are in memory. Text of base64 is decoded on another thread. Thread rule: the event
loop.
"""

import asyncio
from collections.abc import Iterator, Sequence

import grpc

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.utils.signatures import Notice

PIECE_BYTES = 256 * 2**10


class PicturesNotSent(Exception):
    """The pictures were not taken, or are not here. The message has the reason."""


async def send_pictures(
    stub: handover_pb2_grpc.HandoverStub,
    head: pb.PicturePiece,
    pictures: Sequence[tuple[int, Sequence[m.PictureFile]]],
    on_piece: Notice,
) -> None:
    """Send the files of pictures, and wait until the prefill node has checked them. head: names
    connection, room and generation. pictures: index in the prompt and files. on_piece: called for
    each piece taken. Raises PicturesNotSent. The caller bounds the time without a piece."""
    call = stub.Pictures()
    try:
        for index, number, file in _each(pictures):
            if file.coding is m.FileCoding.GONE:
                raise PicturesNotSent(f"{file.place}: its file was dropped")
            try:
                content = await asyncio.to_thread(file.content)
            except (ValueError, OSError) as error:
                raise PicturesNotSent(f"{file.place} is not readable: {error}") from error
            for start in range(0, len(content), PIECE_BYTES):
                head.picture, head.file, head.length = index, number, len(content)
                head.data = content[start : start + PIECE_BYTES]
                await call.write(head)
                head = pb.PicturePiece()
                on_piece()
        await call.done_writing()
        await call
        on_piece()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
        raise PicturesNotSent(f"the prefill node did not take the pictures: {error!r}") from error
    finally:
        call.cancel()


def _each(
    pictures: Sequence[tuple[int, Sequence[m.PictureFile]]],
) -> Iterator[tuple[int, int, m.PictureFile]]:
    """Yield each file with the indices of its picture and of itself in the picture."""
    for index, files in pictures:
        for number, file in enumerate(files):
            yield index, number, file
