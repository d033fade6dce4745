"""Tests of grids from headers: detail, bounds, damaged files, and headers remembered by salt."""

import base64
import hashlib
from typing import Any

import pytest

from tasuki.model.vision import picture_file as files
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import PixelRules, Size
from tasuki.server.errors import InvalidField, NotServedHere, PictureTooLarge
from tasuki.server.pictures import picture_sizes
from tasuki.server.pictures.encoded_bytes import Base64, read_base64, read_url
from tasuki.server.pictures.picture_sizes import LOW_PIXELS, PictureSizes
from tasuki.server.pictures.sent_picture import Detail, PictureLimits, SentPicture
from tests.harness.picture_files import data_url, picture_file, png_chunk, png_of

RULES = PixelRules(16, 2, 2, 65536, 16777216, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
SALT = b"salt"


def sizes(**limits: Any) -> PictureSizes:
    return PictureSizes(RULES, PictureLimits(**limits))


def sent(content: bytes, detail: Detail = Detail.AUTO, place: str = "messages[0]") -> SentPicture:
    return SentPicture(place, content, detail)


def test_a_grid_follows_from_the_header() -> None:
    (found,) = sizes().measured(SALT, [sent(png_of(1920, 1080))])
    assert found.files[0].header.size == Size(1080, 1920)
    assert found.size == Size(1088, 1920)
    assert (found.grid.token_rows, found.grid.token_columns, found.tokens) == (34, 60, 2040)


@pytest.mark.parametrize("detail", Detail)
def test_low_detail_is_at_most_512_by_512(detail: Detail) -> None:
    (found,) = sizes().measured(SALT, [sent(png_of(3000, 2000), detail)])
    assert found.size.pixels <= (LOW_PIXELS if detail is Detail.LOW else 4_000_000)
    assert (found.tokens <= 256) is (detail is Detail.LOW)
    (small,) = sizes().measured(SALT, [sent(png_of(320, 320), detail)])
    assert small.size == Size(320, 320)


def test_the_most_pixels_shown_bound_the_size() -> None:
    (found,) = sizes(shown_pixels=1_000_000).measured(SALT, [sent(png_of(3000, 2000))])
    assert 900_000 < found.size.pixels <= 1_000_000


def test_orientation_turns_the_grid() -> None:
    upright, turned = (picture_file(320, 640, "JPEG", exif=exif) for exif in (b"", _orientation(6)))
    first, second = sizes().measured(SALT, [sent(upright), sent(turned)])
    assert (first.grid.token_rows, first.grid.token_columns) == (20, 10)
    assert (second.grid.token_rows, second.grid.token_columns) == (10, 20)


def _orientation(value: int) -> bytes:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = value
    return exif.tobytes()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x89PNG\r\n\x1a\n", "cannot be decoded|no picture"),
        (b"\x89PNG\r\n\x1a\n" + b"\x00" * 100, "cannot be decoded|no picture"),
        (b"\xff\xd8\xff" + b"\x00" * 50, "cannot be decoded|no picture"),
        (b"GIF89a", "cannot be decoded|no picture"),
        (b"RIFF\x04\x00\x00\x00WEBP", "cannot be decoded|no picture"),
        (png_of(1, 400), "200 times"),
        (png_of(0, 7), "cannot be decoded|no picture|200 times"),
    ],
)
def test_a_damaged_file_is_refused_by_its_place(content: bytes, complaint: str) -> None:
    good = sent(picture_file())
    with pytest.raises(InvalidField, match=complaint) as refused:
        sizes().measured(SALT, [good, sent(content, place="input[3].content[0]")])
    assert refused.value.field == "input[3].content[0]"


@pytest.mark.parametrize(
    ("width", "height"), [(6325, 6325), (1, 20_000_000), (2**31 - 1, 2**31 - 1)]
)
def test_a_bomb_is_refused_by_its_header(width: int, height: int) -> None:
    with pytest.raises((PictureTooLarge, InvalidField)) as refused:
        sizes().measured(SALT, [sent(png_of(width, height))])
    assert refused.value.field == "messages[0]"
    if width == 6325:
        assert isinstance(refused.value, PictureTooLarge)


def test_a_file_beyond_its_bytes_is_refused() -> None:
    content = picture_file()
    bounds = PictureBounds(most_bytes=len(content) - 1)
    with pytest.raises(PictureTooLarge, match="bytes"):
        sizes(each=bounds).measured(SALT, [sent(content)])


def test_all_pictures_share_a_bound_of_pixels() -> None:
    pictures = [sent(png_of(100, 100), place=f"messages[{index}]") for index in range(5)]
    assert len(sizes(most_pixels=50_000).measured(SALT, pictures)) == 5
    with pytest.raises(PictureTooLarge, match="49999 pixels") as refused:
        sizes(most_pixels=49_999).measured(SALT, pictures)
    assert refused.value.field == "messages[4]"


def test_a_header_is_read_once_for_a_salt(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counted(content: bytes, bounds: PictureBounds) -> files.PictureHeader:
        read.append(content)
        return files.read_header(content, bounds)

    monkeypatch.setattr(picture_sizes, "read_header", counted)
    found = sizes()
    content = png_of(320, 64)
    first = found.measured(b"ann", [sent(content)])
    # Another detail has another grid, by the same header.
    low = found.measured(b"ann", [sent(content, Detail.LOW), sent(content)])
    assert len(read) == 1 and low[1].grid == first[0].grid
    found.measured(b"ben", [sent(content)])
    assert len(read) == 2
    for _ in range(2):
        with pytest.raises(InvalidField):
            found.measured(b"ann", [sent(b"GIF89a")])
    assert len(read) == 4


def test_headers_are_bounded_by_bytes() -> None:
    found = PictureSizes(RULES, PictureLimits(), cache_bytes=2000)
    for width in range(64, 128):
        found.measured(SALT, [sent(png_of(width, 64))])
    assert 0 < found._remembered.used <= 2000


def test_a_node_without_pillow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(content: bytes, bounds: PictureBounds) -> None:
        raise files.PillowMissing

    monkeypatch.setattr(picture_sizes, "read_header", missing)
    with pytest.raises(NotServedHere, match=r"tasuki\[vision\]"):
        sizes().measured(SALT, [sent(png_of(64, 64))])


def of_text(content: bytes, text: str | None = None) -> SentPicture:
    encoded = base64.b64encode(content).decode() if text is None else text
    return SentPicture("messages[0]", read_base64(encoded, "messages[0].url", 1 << 20))


def test_the_digest_is_of_the_content() -> None:
    content = png_of(64, 64)
    lines = base64.encodebytes(content).decode()
    found = sizes().measured(SALT, [sent(content), of_text(content), of_text(content, lines)])
    assert {one.files[0].sha256 for one in found} == {hashlib.sha256(content).digest()}
    assert len({one.sent.name for one in found}) == 3
    other = png_of(64, 64, png_chunk(b"tEXt", b"a\0b"))
    assert sizes().measured(SALT, [sent(other)])[0].files != found[0].files


def test_a_known_picture_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    found, content = sizes(), png_of(64, 64)
    found.measured(b"ann", [of_text(content)])
    decoded: list[Base64] = []

    def counted(self: Base64) -> bytes:
        decoded.append(self)
        return content

    monkeypatch.setattr(Base64, "decoded", counted)
    (known,) = found.measured(b"ann", [of_text(content)])
    assert known.files[0].sha256 == hashlib.sha256(content).digest() and not decoded
    # Its bytes are there when they are needed, and another salt knows nothing.
    assert known.sent.content == content and len(decoded) == 1
    found.measured(b"ben", [of_text(content)])
    assert len(decoded) == 2


def test_a_text_without_base64_is_refused_by_its_own_place() -> None:
    with pytest.raises(InvalidField) as refused:
        sizes().measured(SALT, [of_text(b"", "%%%%")])
    assert refused.value.field == "messages[0].url"


def test_the_kind_of_file_is_found_by_content() -> None:
    with pytest.raises(InvalidField, match="a PDF file"):
        sizes().measured(SALT, [of_text(b"%PDF-1.7")])
    url = data_url(picture_file(format="JPEG"), "image/png")
    picture = SentPicture("a", read_url(url, "a", 1 << 20))
    assert sizes().measured(SALT, [picture])[0].files[0].header.format == "JPEG"
