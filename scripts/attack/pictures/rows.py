"""Bodies of chats with odd pictures, each with its right replies.

A row's reply is one of its expected ones: 200, or a status and the error's kind. Pure.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.harness.picture_files import picture_file, png_chunk, png_of

from .files import (
    SMALL,
    SVG,
    animated,
    changed_header,
    declared,
    flat,
    spaced,
    unpacking_to_more,
    url,
)

Expected = tuple[int, str]
_ANSWERED: Expected = (200, "")
_INVALID: Expected = (400, "invalid")
_TOO_LARGE: Expected = (413, "picture_too_large")
_NOT_FETCHED: Expected = (400, "picture_not_fetched")
_MISSING: Expected = (400, "picture_missing")
_CHAT, _COMPLETE = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True)
class Row:
    """One kind of request. body: makes it, each time anew."""

    name: str
    path: str
    body: Callable[[], dict[str, Any]]
    expected: tuple[Expected, ...]


def of_files() -> Iterator[Row]:
    """Yield rows of broken, lying, large and odd files."""
    cut = picture_file(400, 300)
    yield _shown("a bomb by its header", url(declared(1 << 14, 1 << 14)), _TOO_LARGE)
    yield _shown("a longer one", url(declared(20_000_000, 1)), _TOO_LARGE, _INVALID)
    yield _shown("the most pixels allowed", url(flat(6000, 6000)), _ANSWERED)
    yield _shown("pixels of another size", url(unpacking_to_more()), _ANSWERED, _INVALID)
    yield _shown("a header that lies", url(changed_header(), "image/jpeg"), _ANSWERED, _INVALID)
    yield _shown("no pixels at all", url(png_of(640, 480)), _INVALID)
    yield _shown("a header alone", url(declared(640, 480)[:33]), _INVALID)
    yield _shown("a file cut off", url(cut[: len(cut) // 2]), _INVALID)
    yield _shown("the last bytes cut off", url(cut[:-40]), _INVALID)
    yield _shown("many frames", url(animated(), "image/gif"), _ANSWERED, _INVALID)
    yield _shown(
        "many chunks", url(png_of(9, 9, *[png_chunk(b"tEXt", b"a\0b")] * 200_000)), _INVALID
    )
    yield _shown("a name of another format", url(SMALL, "image/jpeg"), _ANSWERED)
    yield _shown("an SVG file", url(SVG, "image/svg+xml"), _INVALID)
    yield _shown("an SVG file by a wrong name", url(SVG), _INVALID)
    yield _shown("a PDF file", url(b"%PDF-1.7"), _INVALID)
    yield _shown("an aspect of 201", url(picture_file(2010, 10)), _INVALID)
    yield _shown("nothing", url(b""), _INVALID)


def of_urls() -> Iterator[Row]:
    """Yield rows of odd URLs and base64, of too many pictures, and of placeholders."""
    big = picture_file(300, 200)
    yield _shown("lines of base64", spaced(big, "\r\n", 76), _ANSWERED)
    yield _shown("spaces in base64", spaced(big, " ", 1), _INVALID, _TOO_LARGE, _ANSWERED)
    yield _shown("space alone", "data:image/png;base64," + " " * 1_000_000, _INVALID)
    yield _shown("no type", "data:;base64," + base64.b64encode(SMALL).decode(), _INVALID)
    yield _shown("no base64", "data:image/png," + "a" * 1000, _INVALID)
    yield _shown("no comma", "data:image/png;base64" + "a" * 1_000_000, _INVALID)
    yield _shown("bad letters", "data:image/png;base64," + "%" * 1_000_000, _INVALID)
    yield _shown("a file's address", "file:///etc/hostname", _INVALID)
    yield _shown("21 MiB", "data:image/png;base64," + "A" * (29 << 20), _TOO_LARGE)
    for count in (65, 10_000):
        urls = [url(SMALL)] * count
        yield Row(f"{count} pictures", _CHAT, lambda urls=urls: _chat(*urls), (_TOO_LARGE,))
    yield _clip("10,000 frames", [url(SMALL)] * 10_000, _TOO_LARGE)
    yield _clip("frames of two sizes", [url(SMALL), url(picture_file(30, 40))], _INVALID)
    yield _clip("a file of video", "data:video/mp4;base64,AAAA", _INVALID)


def of_placeholders(ids: tuple[int, ...]) -> Iterator[Row]:
    """Yield rows of token ids that stand for pictures, and of their names as text. ids: of the
    placeholders."""
    for token in ids:
        body = {"prompt": [65, 66, token, 67], "max_tokens": 1}
        yield Row(f"token {token}", _COMPLETE, lambda body=body: body, (_MISSING,))
    text = "<|vision_start|><|image_pad|><|vision_end|>" * 1000
    message = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    # Text stays text, or is too long.
    yield Row(
        "names as text", _CHAT, lambda: message, (_ANSWERED, (400, "context_length_exceeded"))
    )


def of_addresses(port: int) -> Iterator[Row]:
    """Yield rows of addresses that must not be fetched. port: of a local server."""
    for address in (
        *(f"http://127.0.0.1:{port}/", f"https://127.0.0.1:{port}/", f"https://localhost:{port}/"),
        *("https://localhost/", "https://a.localhost/", "https://localhost:443/a.png"),
        *(
            "https://169.254.169.254/latest/meta-data/",
            "https://[::1]/",
            "https://[::ffff:7f00:1]/",
        ),
        *("https://2130706433/", "https://0x7f.1/", "https://localhost@example.org/"),
        *(f"https://user:key@localhost:{port}/", "HTTPS://LOCALHOST/", "https://localhost./"),
        *("https://" + "a" * 10_000, "http://metadata.google.internal/", "https://localhost\\@a/"),
    ):
        yield _shown(f"{address[:60]}", address, _NOT_FETCHED)


def _shown(name: str, address: str, *expected: Expected) -> Row:
    return Row(name, _CHAT, lambda: _chat(address), expected)


def _clip(name: str, video: object, *expected: Expected) -> Row:
    part = {"type": "video", "video": video}
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}
    return Row(name, _CHAT, lambda: body, expected)


def _chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": each}} for each in urls]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 1}
