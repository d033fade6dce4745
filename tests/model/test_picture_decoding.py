"""Tests of decoding by real processes, with replacements that act like harmful files.

Bombs, truncated files and files that lie about their size are made here, of harmless sizes.
"""

import errno
import io
import os
import random
import signal
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from tasuki.model.vision.decoding import decoders as pool
from tasuki.model.vision.decoding import worker
from tasuki.model.vision.decoding.decoders import (
    DecoderLost,
    DecodersBusy,
    DecodersMissing,
    PictureDecoders,
)
from tasuki.model.vision.decoding.messages import DecodeBounds, DecodeJob, DecodeReply, Outcome
from tasuki.model.vision.decoding.shared_bytes import mapped_content, shared_content, shared_pixels
from tasuki.model.vision.decoding.worker import DecodeWorker
from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.picture_file import PictureBounds, PictureHeader, read_header, read_pixels
from tasuki.model.vision.processor import Size
from tests.harness.decode_stand_ins import OBEYS, obeys
from tests.harness.picture_files import picture_file, png_chunk, png_of
from tests.harness.waiting import HANG_SECONDS, until

BOUNDS = PictureBounds()
HEADER = PictureHeader("PNG", Size(4, 6))
SHORT = DecodeBounds(cpu_seconds=1, wait_seconds=HANG_SECONDS)


@pytest.fixture(scope="module")
def decoders() -> Iterator[PictureDecoders]:
    made = PictureDecoders(cost=SHORT, decode_source=OBEYS)
    yield made
    made.close()


def pixels_of(decoders: PictureDecoders, content: bytes, header: PictureHeader = HEADER) -> object:
    return decoders.decode("ann", content, header, BOUNDS).result(HANG_SECONDS)


def pixels_by(decoders: PictureDecoders, line: str, content: bytes) -> object:
    return decoders.decode(line, content, HEADER, BOUNDS).result(HANG_SECONDS)


def workers_of(parent: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:
            continue
    return [each for each in found if b"decoding.worker" in _command(each)]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_pixels_are_those_of_the_decoder(decoders: PictureDecoders, format: str) -> None:
    content = picture_file(320, 200, format)
    found = pixels_of(decoders, content, read_header(content, BOUNDS))
    assert isinstance(found, np.ndarray) and found.flags.writeable
    assert np.array_equal(found, read_pixels(content, BOUNDS))


def test_orientation_and_transparency_are_applied(decoders: PictureDecoders) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGBA", (30, 10), (0, 0, 0, 0)).save(file, "PNG", exif=exif)
    header = read_header(file.getvalue(), BOUNDS)
    found = pixels_of(decoders, file.getvalue(), header)
    assert isinstance(found, np.ndarray) and found.shape == (30, 10, 3)
    assert (found == 255).all()


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("spin", "too much time or memory"),
        ("allocate", "too much time or memory|cannot be decoded"),
        ("abort", "too much time or memory"),
        ("crash", "cannot be decoded"),
        ("exit", "cannot be decoded"),
        ("raise", "cannot be decoded"),
        ("garbage", "cannot be decoded"),
        ("flood", "cannot be decoded"),
        ("grow", "cannot be decoded"),
        ("floats", "cannot be decoded"),
        ("no picture at all", "no picture"),
    ],
)
def test_a_harmful_file_is_refused_and_the_next_one_decoded(
    decoders: PictureDecoders, action: str, reason: str
) -> None:
    with pytest.raises(PictureError, match=reason):
        pixels_of(decoders, action.encode())
    assert (np.asarray(pixels_of(decoders, b"pass")) == 7).all()


def test_processor_time_follows_the_header() -> None:
    """A small file that spins frees its decoder soon; the largest picture keeps its time."""
    cost = DecodeBounds()
    assert [cost.seconds(pixels) for pixels in (24, 10**6, 40 * 10**6, 10**9)] == [3, 3, 10, 10]
    # With the largest picture's time it would be late.
    bounds = DecodeBounds(cpu_seconds=120, wait_seconds=60.0, least_seconds=0.5)
    made = PictureDecoders(cost=bounds, decode_source=OBEYS)
    try:
        with pytest.raises(PictureError, match="too much time or memory"):
            pixels_of(made, b"spin")
    finally:
        made.close()


def test_a_reason_is_short(decoders: PictureDecoders) -> None:
    with pytest.raises(PictureError) as refused:
        pixels_of(decoders, b"long")
    assert len(str(refused.value)) == 300


@pytest.mark.parametrize("action", ["socket", "file", "fork", "kill"])
def test_a_child_reaches_nothing(decoders: PictureDecoders, action: str) -> None:
    """No socket, no file, no process, no signal: root too."""
    with pytest.raises(PictureError, match=f"refused with {errno.EPERM}"):
        pixels_of(decoders, action.encode())


@pytest.mark.parametrize("action", ["socket", "file"])
def test_limits_hold_without_the_filter(action: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "forbid_calls", lambda: False)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with (
        ours,
        theirs,
        shared_content(action.encode()) as given,
        shared_pixels(Size(4, 6)) as wanted,
    ):
        # The child has the lowest priority. A busy machine may let it wait for long.
        job = DecodeJob(4, 6, 1 << 20, 24, DecodeBounds(wait_seconds=120.0))
        socket.send_fds(ours, [msgspec.msgpack.encode(job)], [given, wanted])
        ours.shutdown(socket.SHUT_WR)
        DecodeWorker(theirs, obeys, 1 << 36).run()
        reply = msgspec.msgpack.decode(ours.recv(4096), type=DecodeReply)
    assert reply.reason == f"refused with {errno.EMFILE}"


def test_a_child_has_no_environment(
    decoders: PictureDecoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    own = PictureDecoders(decode_source=OBEYS)
    try:
        with pytest.raises(PictureError) as found:
            pixels_of(own, b"environment")
    finally:
        own.close()
    names = set(str(found.value).split())
    assert "SOME_KEY" not in names and len(names) < 12, names


def test_waiting_bytes_are_bounded_and_another_caller_still_begins() -> None:
    decoders = PictureDecoders(most_waiting_bytes=100, decode_source=OBEYS)
    content = b"pass " + bytes(55)
    try:
        slow = decoders.decode("ann", b"sleep " + bytes(54), HEADER, BOUNDS)
        with pytest.raises(DecodersBusy):
            decoders.decode("ann", content, HEADER, BOUNDS)
        assert (np.asarray(pixels_by(decoders, "ben", content)) == 7).all()
    finally:
        decoders.close()
    with pytest.raises(DecoderLost):
        slow.result(HANG_SECONDS)
    until(lambda: not decoders._held, lambda: f"{decoders._held} are held")


def test_a_child_keeps_its_picture_and_its_pipe(decoders: PictureDecoders) -> None:
    """Content, pixels, the pipe, and the mapping of the pixels: no socket of the worker."""
    with pytest.raises(PictureError, match=r"^4 are open"):
        pixels_of(decoders, b"descriptors")


def test_a_silent_child_ends_in_its_time() -> None:
    decoders = PictureDecoders(cost=DecodeBounds(wait_seconds=0.2), decode_source=OBEYS)
    try:
        with pytest.raises(DecoderLost, match="not decoded in its time"):
            pixels_of(decoders, b"sleep")
        assert decoders.lost == 0
        (worker,) = workers_of(os.getpid())[-1:]
        assert not workers_of(worker)
    finally:
        decoders.close()


def test_a_killed_worker_fails_its_picture_and_another_starts() -> None:
    decoders = PictureDecoders(workers=1, decode_source=OBEYS)
    before = {*workers_of(os.getpid())}
    try:
        begun = decoders.decode("ann", b"sleep", HEADER, BOUNDS)
        until(lambda: {*workers_of(os.getpid())} - before, lambda: "no worker was started")
        (worker,) = {*workers_of(os.getpid())} - before
        until(lambda: workers_of(worker), lambda: "no child was forked")
        (child,) = workers_of(worker)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(DecoderLost, match="ask again"):
            begun.result(HANG_SECONDS)
        assert decoders.lost == 1
        until(lambda: not _command(child), lambda: "the child outlived its worker")
        assert (np.asarray(pixels_of(decoders, b"pass")) == 7).all()
    finally:
        decoders.close()
    until(lambda: not {*workers_of(os.getpid())} - before, lambda: "a worker is left")
    with pytest.raises(DecoderLost, match="another"):
        pixels_of(decoders, b"pass")


def test_a_child_killed_from_outside_may_be_asked_again(decoders: PictureDecoders) -> None:
    pixels_of(decoders, b"pass")
    before = {each for worker in workers_of(os.getpid()) for each in workers_of(worker)}
    begun = decoders.decode("ann", b"sleep", HEADER, BOUNDS)

    def forked() -> set[int]:
        return {each for worker in workers_of(os.getpid()) for each in workers_of(worker)} - before

    until(lambda: bool(forked()), lambda: "no child was forked")
    for child in forked():
        os.kill(child, signal.SIGKILL)
    with pytest.raises(DecoderLost, match="ended from outside"):
        begun.result(HANG_SECONDS)


def test_closing_ends_pictures_in_work() -> None:
    decoders = PictureDecoders(decode_source=OBEYS)
    begun = decoders.decode("ann", b"sleep", HEADER, BOUNDS)
    time.sleep(0.05)
    decoders.close()
    with pytest.raises(DecoderLost):
        begun.result(HANG_SECONDS)


def test_waiting_pictures_are_bounded_and_never_begun_once_cancelled() -> None:
    decoders = PictureDecoders(workers=1, most_waiting=2, decode_source=OBEYS)
    try:
        first = decoders.decode("ann", b"sleep", HEADER, BOUNDS)
        second = decoders.decode("ann", b"pass", HEADER, BOUNDS)
        with pytest.raises(DecodersBusy):
            decoders.decode("ann", b"pass", HEADER, BOUNDS)
        second.cancel()
        with pytest.raises(CancelledError):
            second.result(HANG_SECONDS)
        # Its place is free again.
        third = decoders.decode("ben", b"pass", HEADER, BOUNDS)
    finally:
        decoders.close()
    for each in (first, third):
        with pytest.raises(DecoderLost):
            each.result(HANG_SECONDS)


def test_a_displaced_picture_is_told_to_come_again() -> None:
    decoders = PictureDecoders(workers=1, most_waiting=4, decode_source=OBEYS)
    try:
        waiting = [decoders.decode("ann", b"sleep", HEADER, BOUNDS) for _ in range(4)]
        decoders.decode("ben", b"pass", HEADER, BOUNDS)
        with pytest.raises(DecodersBusy, match="ask again"):
            waiting[-1].result(HANG_SECONDS)
    finally:
        decoders.close()


def test_any_error_of_a_picture_ends_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError

    decoders = PictureDecoders(workers=1, decode_source=OBEYS)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(pool, "mapped_pixels", full)
            with pytest.raises(MemoryError):
                pixels_of(decoders, b"pass")
        assert not decoders._all and decoders.lost == 1
        assert (pixels_of(decoders, b"pass") == 7).all()
    finally:
        decoders.close()


def test_a_worker_that_starts_during_a_close_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    decoders = PictureDecoders(workers=1, decode_source=OBEYS)
    start = pool._Worker.__init__

    def started(self: pool._Worker, source: str) -> None:
        start(self, source)
        decoders.close()

    monkeypatch.setattr(pool._Worker, "__init__", started)
    with pytest.raises(DecoderLost, match="stops"):
        pixels_of(decoders, b"pass")
    assert not decoders._all


def test_callers_share_the_processes(decoders: PictureDecoders) -> None:
    """One caller's pictures leave a process for another's."""
    slow = [decoders.decode("ann", b"spin", HEADER, BOUNDS) for _ in range(2)]
    other = decoders.decode("ben", b"pass", HEADER, BOUNDS)
    assert (other.result(HANG_SECONDS) == 7).all()
    assert not slow[-1].done()
    for each in slow:
        with pytest.raises(PictureError):
            each.result(HANG_SECONDS)


def _animated(format: str, **options: Any) -> bytes:
    frames = [Image.new("RGB", (32, 24), (value, 0, 9)) for value in (200, 100, 50)]
    file = io.BytesIO()
    frames[0].save(file, format, save_all=True, append_images=frames[1:], **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG", "MPO"])
def test_the_first_of_several_frames_is_decoded(decoders: PictureDecoders, format: str) -> None:
    """A child can load no further module of Pillow: all are there before."""
    content = _animated(format, **({"lossless": True} if format == "WEBP" else {}))
    found = np.asarray(pixels_of(decoders, content, read_header(content, BOUNDS)))
    assert np.array_equal(found, read_pixels(content, BOUNDS))
    assert abs(int(found[0, 0, 0]) - 200) <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "I;16", "CMYK", "RGBA"])
def test_every_kind_of_pixels_is_decoded(decoders: PictureDecoders, mode: str) -> None:
    format = "JPEG" if mode == "CMYK" else "PNG"
    image = Image.linear_gradient("L").resize((30, 20))
    image = image.convert("RGB").convert("CMYK") if mode == "CMYK" else _converted(image, mode)
    file = io.BytesIO()
    facts = Image.Exif()
    facts[0x010E] = "described"
    image.save(file, format, exif=facts, dpi=(72, 72), icc_profile=b"x" * 4000)
    content = file.getvalue()
    found = pixels_of(decoders, content, read_header(content, BOUNDS))
    assert np.array_equal(np.asarray(found), read_pixels(content, BOUNDS))


def _converted(image: Image.Image, mode: str) -> Image.Image:
    if mode == "I;16":
        return Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
    if mode == "PA":
        palette = image.convert("P")
        palette.info["transparency"] = 3
        return palette
    return image.convert(mode)


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG file of many equal pixels."""
    rows = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(rows.compress(row) for _ in range(height)) + rows.flush()
    return png_of(width, height, png_chunk(b"IDAT", data))


def test_a_bomb_is_refused_before_its_pixels(decoders: PictureDecoders) -> None:
    content = bomb(2000, 1000)
    assert len(content) < 20_000
    bounds = PictureBounds(most_pixels=1_000_000)
    header = PictureHeader("PNG", Size(1000, 2000))
    with pytest.raises(PictureError, match="1000000 are allowed"):
        decoders.decode("ann", content, header, bounds).result(HANG_SECONDS)


def test_a_file_that_unpacks_to_more_than_its_header_is_refused_or_cut(
    decoders: PictureDecoders,
) -> None:
    many = bomb(2000, 1000)
    data = many[33 + 8 : -16]
    content = png_of(40, 30, png_chunk(b"IDAT", data))
    header = read_header(content, BOUNDS)
    try:
        found = pixels_of(decoders, content, header)
    except PictureError:
        return
    assert np.asarray(found).shape == (30, 40, 3)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_truncated_files_are_refused(decoders: PictureDecoders, format: str) -> None:
    content = picture_file(300, 200, format)
    header = read_header(content, BOUNDS)
    for share in (0.5, 0.9):
        with pytest.raises(PictureError, match="send"):
            pixels_of(decoders, content[: int(len(content) * share)], header)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF"])
def test_damaged_files_give_pixels_of_their_size_or_a_refusal(
    decoders: PictureDecoders, format: str
) -> None:
    rng = random.Random(format)
    content = picture_file(64, 48, format)
    header = read_header(content, BOUNDS)
    for _ in range(25):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        try:
            found = pixels_of(decoders, bytes(damaged), header)
        except PictureError:
            continue
        assert np.asarray(found).shape == (48, 64, 3)
    assert decoders.lost == 0


@pytest.mark.parametrize("size", [Size(48, 65), Size(64, 48), Size(1, 1)])
def test_a_header_that_lied_is_refused(decoders: PictureDecoders, size: Size) -> None:
    content = picture_file(64, 48)
    with pytest.raises(PictureError, match="undamaged"):
        pixels_of(decoders, content, PictureHeader("PNG", size))


def test_shared_bytes_are_sealed() -> None:
    with shared_content(b"abc") as handle:
        assert mapped_content(handle) == b"abc"
        for act in (lambda: os.ftruncate(handle, 1), lambda: os.write(handle, b"x")):
            with pytest.raises(PermissionError):
                act()
    with shared_pixels(Size(2, 3)) as handle:
        assert os.fstat(handle).st_size == 18
        for length in (0, 19):
            with pytest.raises(PermissionError):
                os.ftruncate(handle, length)


def test_no_descriptor_is_left() -> None:
    decoders = PictureDecoders(decode_source=OBEYS)
    try:
        pixels_of(decoders, b"pass")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            pixels_of(decoders, b"pass")
            with pytest.raises(PictureError):
                pixels_of(decoders, b"exit")
        assert len(os.listdir("/proc/self/fd")) <= before
    finally:
        decoders.close()


class Scripted:
    """A worker without a process: answers each job with the given bytes, on a thread."""

    def __init__(self, answer: bytes) -> None:
        self.ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answer = answer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._theirs:
            _, handles, _, _ = socket.recv_fds(self._theirs, 4096, 2)
            for handle in handles:
                os.close(handle)
            if self._answer:
                self._theirs.send(self._answer)

    def join(self) -> None:
        self._thread.join()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", DecoderLost),
        (b"\xc1", DecoderLost),
        (msgspec.msgpack.encode(DecodeReply(Outcome.LOST, "gone")), DecoderLost),
        (msgspec.msgpack.encode(DecodeReply(Outcome.UNAVAILABLE, "no Pillow")), DecodersMissing),
        (msgspec.msgpack.encode(DecodeReply(Outcome.REFUSED, "bad")), PictureError),
    ],
)
def test_every_answer_of_a_worker_becomes_a_typed_error(
    answer: bytes, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted = Scripted(answer)
    decoders = PictureDecoders(workers=1, decode_source=OBEYS)
    start = pool._Worker.__init__

    def started(self: pool._Worker, source: str) -> None:
        start(self, source)
        self._socket.close()
        self._socket = scripted.ours

    monkeypatch.setattr(pool._Worker, "__init__", started)
    try:
        with pytest.raises(error):
            pixels_of(decoders, b"pass")
    finally:
        decoders.close()
        scripted.join()


def test_a_worker_ends_with_its_client_s_socket() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        ours.close()
        DecodeWorker(theirs, obeys, 0).run()


def test_a_job_without_its_two_descriptors_ends_the_worker() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(msgspec.msgpack.encode(DecodeJob(1, 1, 1, 1)))
        with pytest.raises(ValueError, match="unpack"):
            DecodeWorker(theirs, obeys, 0).run()
