"""Which pictures are the same: two that are not never share a hit, rows or a known header.

Files go through the node's reader and a whole engine. Speed is judged by counts: headers read,
files decoded, pictures encoded, rows found.
"""

import io
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.pictures import picture_sizes
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.pictures.sent_picture import Detail, SentPicture
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tests.harness.engines import Lone, prompt, submit
from tests.harness.tiny_pictures import (
    END,
    IMAGE,
    RULES,
    START,
    TOWER,
    assert_idle,
    encoder,
    seeing_engine,
)
from tests.harness.waiting import HANG_SECONDS

BEFORE, BEHIND = 70, 30


def png_of(pixels: np.ndarray) -> bytes:
    """Return a PNG of RGB pixels [height, width, 3]."""
    return saved(Image.fromarray(pixels.astype(np.uint8)), "PNG")


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3))


def turned(content: bytes, orientation: int) -> bytes:
    """Return a JPEG of the same pixels with another orientation in its EXIF block."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return content[:2] + b"\xff\xe1" + exif_block(exif.tobytes()) + content[2:]


def exif_block(data: bytes) -> bytes:
    return (len(data) + 2).to_bytes(2, "big") + data


A_JPEG = saved(Image.fromarray(noise(40, 40).astype(np.uint8)), "JPEG")
CORNER = np.indices((40, 40, 3)).sum(0) == 0
FLAT = np.full((30, 150, 3), 90)
RAMP = np.arange(30 * 150 * 3).reshape(30, 150, 3) % 256

PAIRS: dict[str, tuple[SentPicture, SentPicture]] = {
    name: (SentPicture("a", one), SentPicture("b", other))
    for name, one, other in (
        ("another picture of the same size", png_of(noise(40, 40)), png_of(noise(40, 40, 1))),
        ("one pixel", png_of(noise(40, 40)), png_of(noise(40, 40) ^ CORNER)),
        ("30 x 150 and 150 x 30, equal pixels", png_of(FLAT), png_of(FLAT.reshape(150, 30, 3))),
        ("30 x 150 and 150 x 30, equal order", png_of(RAMP), png_of(RAMP.reshape(150, 30, 3))),
        ("another orientation", turned(A_JPEG, 1), turned(A_JPEG, 3)),
        ("a quarter turn", turned(A_JPEG, 1), turned(A_JPEG, 6)),
    )
}  # fmt: skip
DETAILS = tuple(SentPicture("a", png_of(noise(60, 60)), each) for each in (Detail.HIGH, Detail.LOW))


def settled(engine: Lone, name: str) -> None:
    """Run the engine, with waits for decodes, until the request has ended."""
    until = time.monotonic() + HANG_SECONDS
    engine.run()
    while encoder(engine).is_decoding:
        assert time.monotonic() < until
        time.sleep(engine.engine.idle_seconds or 0.0)
        engine.run()
    assert engine.finished(name)


class Node:
    """The reader of pictures and the engine behind it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(picture_sizes, "LOW_PIXELS", 2000)
        self.pictures = NodePictures(TOWER.tokens, RULES)
        self.engine = seeing_engine(prefill_chunk_tokens=64)
        self.headers = 0
        self._count_headers(monkeypatch)

    def _count_headers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = picture_sizes.read_header

        def counted(*arguments: object) -> object:
            self.headers += 1
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(picture_sizes, "read_header", counted)

    def counts(self) -> np.ndarray:
        """Return headers read, files decoded, pictures encoded, rows found."""
        found = encoder(self.engine).counts
        return np.array([self.headers, found.decoded, found.encoded, found.kept])

    def message(self, name: str, sent: SentPicture, salt: bytes) -> m.Submit:
        text = [token % 120 for token in prompt(BEFORE + BEHIND)]
        tokens = [*text[:BEFORE], START, IMAGE, END, *text[BEFORE:]]
        rendered = RenderedPrompt(np.array(tokens, dtype=np.int32))
        placed = self.pictures.placed(rendered, [sent], salt, 4096)
        return submit(name, placed.tokens.tolist(), 4, salt=salt, pictures=placed.pictures)

    def ask(self, name: str, sent: SentPicture, salt: bytes = b"") -> list[int]:
        """Ask about a picture. Return the counts of this request."""
        before = self.counts()
        self.engine.post(self.message(name, sent, salt))
        settled(self.engine, name)
        assert_idle(self.engine)
        found: list[int] = (self.counts() - before).tolist()
        return found


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    found = Node(monkeypatch)
    yield found
    encoder(found.engine).close()


NEW, KNOWN = [1, 1, 1, 0], [0, 0, 0, 0]


@pytest.mark.parametrize("name", PAIRS)
def test_different_pictures_share_nothing(node: Node, name: str) -> None:
    first, second = PAIRS[name]
    assert node.ask("first", first) == NEW
    assert node.ask("second", second) == NEW
    assert node.engine.hit("second").kv_tokens <= BEFORE
    assert node.engine.hit("second").usable_tokens <= BEFORE
    # The same ones again are hits behind their picture.
    for again, sent in (("first again", first), ("second again", second)):
        assert node.ask(again, sent) == KNOWN
        assert node.engine.hit(again).usable_tokens > BEFORE + 1
        assert node.engine.tokens(again) == node.engine.tokens(again.split()[0])


def test_the_same_bytes_in_another_detail_share_their_header_alone(node: Node) -> None:
    """A header says nothing of the detail, and it is the same caller's."""
    high, low = DETAILS
    assert node.ask("high", high) == NEW
    assert node.ask("low", low) == [0, 1, 1, 0]
    assert node.engine.hit("low").kv_tokens <= BEFORE
    # The processor's own size under another name is the same picture.
    assert node.ask("auto", replace(high, detail=Detail.AUTO)) == KNOWN


def test_another_tenant_shares_nothing(node: Node) -> None:
    sent, _ = PAIRS["one pixel"]
    for salt in (b"one", b"two"):
        assert node.ask(f"first of {salt!r}", sent, salt) == NEW
        assert node.engine.hit(f"first of {salt!r}").kv_tokens == 0
    # Another text before it: rows under the own salt only.
    other = node.message("other", sent, b"two")
    other.prompt[0] += 1
    before = node.counts()
    node.engine.post(other)
    settled(node.engine, "other")
    assert (node.counts() - before).tolist() == [0, 0, 0, 1]
    assert node.ask("first of a third", sent, b"three") == NEW


def test_text_and_a_picture_of_the_same_tokens_share_the_text_before(node: Node) -> None:
    """A sampled placeholder is text, and comes again as text in the next turn."""
    sent, _ = PAIRS["one pixel"]
    message = node.message("picture", sent, b"")
    as_text = submit("text", message.prompt.tolist(), 4)
    node.engine.post(as_text)
    settled(node.engine, "text")
    assert node.ask("picture", sent)[1:] == NEW[1:]
    assert node.engine.hit("picture").kv_tokens <= BEFORE
    node.engine.post(replace(as_text, request_id=m.RequestId("text again")))
    settled(node.engine, "text again")
    assert node.engine.tokens("text again") == node.engine.tokens("text")
    assert node.engine.hit("text again").usable_tokens > BEFORE + 1
    assert node.ask("picture again", sent) == KNOWN


def test_sampled_placeholders_are_never_a_picture(node: Node) -> None:
    """The model drew as many placeholders behind an opening token as the picture has."""
    sent, _ = PAIRS["one pixel"]
    message = node.message("picture", sent, b"")
    (picture,) = message.pictures
    forced = SamplingParams(
        max_new_tokens=picture.run.tokens + 1, ignore_eos=True, allowed_token_ids=(IMAGE,)
    )
    drawn = submit("drawn", message.prompt[: picture.start].tolist(), 0, sampling=forced)
    node.engine.post(drawn)
    settled(node.engine, "drawn")
    assert node.engine.tokens("drawn") == [IMAGE] * (picture.run.tokens + 1)
    assert node.ask("picture", sent)[1:] == NEW[1:]
    assert node.engine.hit("picture").kv_tokens <= BEFORE
