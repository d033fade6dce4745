"""Tests of picture parts in every API's form: one neutral value, or a refusal that names the place.

Also bounds of bytes, base64 and `data:` URLs.
"""

import base64
from collections.abc import Callable
from typing import Any

import pytest

from tasuki.model.vision.picture_file import PictureBounds
from tasuki.server.errors import InvalidField, PictureNotFetched, PictureTooLarge, ServerError
from tasuki.server.http.errors import error_body, error_status
from tasuki.server.pictures.encoded_bytes import Base64, read_base64, read_url
from tasuki.server.pictures.part_reader import PictureReader, check_part_type
from tasuki.server.pictures.sent_picture import Detail, PictureLimits, media_type
from tests.harness.picture_files import data_url, picture_file

PNG = picture_file()
URL = data_url(PNG)
PLACE = "messages[2].content[1]"
MOST = 1 << 20
BASE64 = base64.b64encode(PNG).decode()


def chat(**fields: Any) -> Callable[[PictureReader], None]:
    return lambda reader: reader.chat_part(fields, PLACE)


def block(source: Any) -> Callable[[PictureReader], None]:
    return lambda reader: reader.message_block({"type": "image", "source": source}, PLACE)


def response(**fields: Any) -> Callable[[PictureReader], None]:
    return lambda reader: reader.response_part({"type": "input_image", **fields}, PLACE)


@pytest.mark.parametrize(
    ("read", "detail"),
    [
        (chat(type="image_url", image_url={"url": URL}), Detail.AUTO),
        (chat(type="image_url", image_url={"url": URL, "detail": "low"}), Detail.LOW),
        (chat(type="image_url", image_url={"url": URL, "detail": None}), Detail.AUTO),
        (chat(type="image_url", image_url=URL), Detail.AUTO),
        (chat(type="image", image=URL), Detail.AUTO),
        (chat(type="image", image_url={"url": URL}), Detail.AUTO),
        (chat(type="input_image", image_url=URL, detail="high"), Detail.HIGH),
        (block({"type": "base64", "media_type": "image/png", "data": BASE64}), Detail.AUTO),
        (block({"type": "url", "url": URL}), Detail.AUTO),
        (response(image_url=URL, detail="original"), Detail.ORIGINAL),
        (response(image_url=URL, detail=None, file_id=None), Detail.AUTO),
    ],
)
def test_every_form_becomes_one_value(
    read: Callable[[PictureReader], None], detail: Detail
) -> None:
    reader = PictureReader(PictureLimits())
    read(reader)
    (found,) = reader.pictures
    assert isinstance(found.data, Base64)
    assert (found.place, found.content, found.detail) == (PLACE, PNG, detail)


@pytest.mark.parametrize(
    "part", [{"image_url": {"url": URL}}, {"image_url": URL}, {"type": "image", "image": URL}]
)
def test_a_chat_does_not_hold_its_pictures_twice(part: dict[str, Any]) -> None:
    reader = PictureReader(PictureLimits())
    reader.chat_part(part, PLACE)
    assert reader.pictures[0].content == PNG and BASE64 not in str(part)


@pytest.mark.parametrize(
    ("read", "field", "complaint"),
    [
        (chat(type="image_url"), f"{PLACE}.image_url", "must be a URL"),
        (chat(type="image_url", image_url={}), f"{PLACE}.image_url.url", "must be a URL"),
        (chat(type="image_url", image_url={"url": 7}), f"{PLACE}.image_url.url", "must be a URL"),
        (
            chat(type="image_url", image_url={"url": URL, "detail": "best"}),
            f"{PLACE}.image_url.detail",
            "one of auto, low, high, original",
        ),
        (response(image_url=URL, detail=3), f"{PLACE}.detail", "one of"),
        (response(file_id="file-1"), f"{PLACE}.file_id", "send the picture itself"),
        (response(), f"{PLACE}.image_url", "must be a URL"),
        (block(None), f"{PLACE}.source", "base64 or url"),
        (block({"type": "file", "file_id": "f"}), f"{PLACE}.source.file_id", "stores none"),
        (block({"type": "text", "data": BASE64}), f"{PLACE}.source.type", "base64 or url"),
        (block({"type": "base64", "data": BASE64}), f"{PLACE}.source.media_type", "image/png"),
        (
            block({"type": "base64", "media_type": "image/png", "data": None}),
            f"{PLACE}.source.data",
            "string of base64",
        ),
        (
            block({"type": "base64", "media_type": "application/pdf", "data": BASE64}),
            f"{PLACE}.source.media_type",
            "PDF",
        ),
        (
            block({"type": "base64", "media_type": "image/png", "data": "%%%"}),
            f"{PLACE}.source.data",
            "not base64",
        ),
    ],
)
def test_a_malformed_part_is_refused_by_its_place(
    read: Callable[[PictureReader], None], field: str, complaint: str
) -> None:
    reader = PictureReader(PictureLimits())
    with pytest.raises(InvalidField) as refused:
        read(reader)
        reader.pictures[0].content  # noqa: B018
    assert refused.value.field == field and complaint in str(refused.value)


@pytest.mark.parametrize(
    "kind", ["file", "input_file", "document", "input_video", "input_audio", "image_embeds"]
)
def test_other_parts_are_refused_by_name(kind: str) -> None:
    with pytest.raises(InvalidField, match=kind) as refused:
        check_part_type(kind, PLACE)
    assert refused.value.field == PLACE and ": " in str(refused.value)


@pytest.mark.parametrize("kind", ["text", "image_url", "unheard of"])
def test_parts_of_other_types_are_left_to_their_reader(kind: str) -> None:
    check_part_type(kind, PLACE)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_media_types_are_found_by_content(format: str) -> None:
    assert media_type(picture_file(format=format), PLACE) == f"image/{format.lower()}"


@pytest.mark.parametrize("format", ["BMP", "TIFF", "PPM", "ICO"])
def test_other_formats_are_refused(format: str) -> None:
    with pytest.raises(InvalidField, match="PNG, JPEG, WEBP, GIF"):
        media_type(picture_file(format=format), PLACE)


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"<svg></svg>", "an SVG file"), (b"%PDF-1.7", "a PDF file"), (b"some bytes", "no known")],
)
def test_other_files_are_refused_by_name(content: bytes, kind: str) -> None:
    with pytest.raises(InvalidField, match=f"{kind}.*send.* PNG, JPEG") as refused:
        media_type(content, PLACE)
    assert refused.value.field == PLACE


def test_a_request_has_a_most_of_pictures() -> None:
    reader = PictureReader(PictureLimits(most_pictures=2))
    for index in range(2):
        reader.chat_part({"image_url": URL}, f"messages[{index}].content[0]")
    # Before its bytes are read: they may be no picture at all.
    with pytest.raises(PictureTooLarge, match="picture 3") as refused:
        reader.chat_part({"image_url": "data:image/png;base64,%"}, PLACE)
    assert refused.value.field == PLACE
    assert len(reader.pictures) == 2


@pytest.mark.parametrize("url", ["https://example.org/a.png", "HTTP://127.0.0.1/"])
def test_an_address_is_refused_with_the_fix(url: str) -> None:
    with pytest.raises(PictureNotFetched, match="data:image/png;base64,") as refused:
        read_url(url, PLACE, MOST)
    assert error_status(refused.value) == 400
    body = error_body(refused.value)["error"]
    assert (body["code"], body["param"]) == ("picture_not_fetched", PLACE)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("file:///etc/passwd", "scheme 'file'"),
        ("ftp://example.org/a", "scheme 'ftp'"),
        ("/etc/passwd", "is no URL"),
        ("", "is no URL"),
        (BASE64[:200], "is no URL"),
        ("data:image/png;base64", "no comma"),
        (f"data:image/png;{'a=b;' * 100}base64,{BASE64}", "no comma"),
        (f"data:,{BASE64}", "no media type"),
        (f"data:;base64,{BASE64}", "no media type"),
        (f"data:text/plain;base64,{BASE64}", "text/plain"),
        (f"data:application/pdf;base64,{BASE64}", "PDF"),
        ("data:image/png,%89PNG", "not in base64"),
        ("data:image/png;base64,", "is empty"),
        ("data:image/png;base64,AAAAAA=", "not base64"),
        (f"data:image/png;base64,{BASE64}%0A", "not base64"),
        ("data:image/png;base64,\ud83d\ud83d", "beyond ASCII"),
        (f"data:image/png;base64,{BASE64.replace('A', '_')}", "not base64"),
    ],
)
def test_a_url_without_a_picture_is_refused(url: str, complaint: str) -> None:
    with pytest.raises(InvalidField, match=complaint) as refused:
        read_url(url, PLACE, MOST).decoded()
    assert refused.value.field == PLACE
    # No error repeats a client's bytes at length.
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "url",
    [
        URL,
        f"DATA:Image/PNG;Base64,{BASE64}",
        f"data:image/png;name=a.png;base64,{BASE64}",
        "data:image/png;base64,"
        + "\r\n".join(BASE64[at : at + 76] for at in range(0, len(BASE64), 76)),
    ],
)
def test_a_data_url_gives_its_bytes(url: str) -> None:
    assert read_url(url, PLACE, MOST).decoded() == PNG


@pytest.mark.parametrize("size", [99, 100, 101, 102, 103, 104, 5000])
def test_the_bound_is_on_bytes(size: int) -> None:
    text = base64.b64encode(bytes(size)).decode()
    if size <= 100:
        assert read_base64(text, PLACE, 100).decoded() == bytes(size)
        return
    with pytest.raises(PictureTooLarge, match="100 bytes are allowed") as refused:
        read_base64(text, PLACE, 100).decoded()
    assert error_status(refused.value) == 413
    assert error_body(refused.value)["error"]["code"] == "picture_too_large"


def test_the_bound_comes_before_the_decoding() -> None:
    """A text beyond the bound is not decoded: it need not even be base64."""
    with pytest.raises(PictureTooLarge):
        read_base64("%" * 10_000, PLACE, 1000)
    with pytest.raises(PictureTooLarge):
        PictureReader(PictureLimits(each=PictureBounds(most_bytes=10))).chat_part(
            {"image_url": URL}, PLACE
        )


def test_refusals_are_typed() -> None:
    for error in (PictureTooLarge("a", "b"), PictureNotFetched("a", "b")):
        assert isinstance(error, ServerError) and error.retry.value == "never"
