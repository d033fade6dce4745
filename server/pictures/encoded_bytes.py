"""Bytes of pictures in texts: base64, `data:` URLs, and URLs refused by their scheme.

A text is bounded when it is read, and decoded when its bytes are needed. Agents send the same
pictures each turn: a known one is recognised by its text, and decoding would be most of its cost.

Pure functions and values. A call costs no more than the length of its text. An error names the
place and never repeats a long text.
"""

import binascii
from dataclasses import dataclass

from tasuki.server.errors import InvalidField, PictureNotFetched, PictureTooLarge

_SPACE = b" \t\r\n"
_LINES = 16
"""Number of base64 characters for each allowed character of white space: MIME breaks a line of 76
characters by two."""
MOST_HEAD = 256
"""Largest number of characters of a `data:` URL before its data."""
_FIX = "send data:image/png;base64,..."


@dataclass(frozen=True)
class Base64:
    """Bytes as base64. text: ASCII, not checked further. place: position of the text in the
    request, for errors. most_bytes: bound of the decoded bytes."""

    text: bytes
    place: str
    most_bytes: int

    def decoded(self) -> bytes:
        """Return the bytes. White space is dropped. Raises InvalidField if they are empty or not
        base64; PictureTooLarge."""
        try:
            content = _decoded(self.text)
        except binascii.Error as error:
            raise InvalidField(
                self.place,
                f"is not base64 ({str(error)[:80]}): encode the file's bytes, with padding",
            ) from error
        if not content:
            raise InvalidField(self.place, "is empty: send the file's bytes in base64")
        if len(content) > self.most_bytes:
            raise _too_large(self.place, f"{len(content)} bytes", self.most_bytes)
        return content


def read_base64(text: str, place: str, most_bytes: int) -> Base64:
    """Return a text within its bound, not decoded yet. Raises InvalidField beyond ASCII;
    PictureTooLarge."""
    _check_length(len(text), place, most_bytes)
    try:
        return Base64(text.encode("ascii"), place, most_bytes)
    except UnicodeEncodeError as error:
        raise InvalidField(place, "is not base64: it holds characters beyond ASCII") from error


def read_url(url: str, place: str, most_bytes: int) -> Base64:
    """Return the data of a picture's `data:` URL, still in base64. Raises InvalidField,
    PictureTooLarge, and PictureNotFetched for a web address."""
    scheme, colon, _ = url[:MOST_HEAD].partition(":")
    match scheme.lower() if colon else "":
        case "data":
            return _read_data(url, place, most_bytes)
        case "https" | "http":
            raise PictureNotFetched(
                place,
                f"is an address, and this node fetches none: {_FIX}, or have --fetch-pictures list "
                "its host",
            )
        case "":
            raise InvalidField(place, f"is no URL: {_FIX}")
        case other:
            raise InvalidField(place, f"has the scheme {other!r:.40}: {_FIX}")


def is_address(url: str) -> bool:
    """Return True for a URL of the web."""
    return url[:8].lower().startswith(("https:", "http:"))


def check_declared(declared: str, place: str) -> None:
    """Raise InvalidField unless a declared media type is a picture's. It need not be the
    content's."""
    if not declared:
        raise InvalidField(place, f"has no media type: {_FIX}")
    if declared == "application/pdf":
        raise InvalidField(place, "is a PDF file: send its pages as pictures")
    if not declared.startswith("image/"):
        raise InvalidField(place, f"is of type {declared!r:.60}, not a picture's: {_FIX}")


def _read_data(url: str, place: str, most_bytes: int) -> Base64:
    head, comma, _ = url[:MOST_HEAD].partition(",")
    if not comma:
        raise InvalidField(place, f"has no comma in its first {MOST_HEAD} characters: {_FIX}")
    declared, *parameters = (part.strip().lower() for part in head[len("data:") :].split(";"))
    check_declared(declared, place)
    if not parameters or parameters[-1] != "base64":
        raise InvalidField(place, f"is not in base64: {_FIX}")
    begin = len(head) + 1
    # Before the data is copied.
    _check_length(len(url) - begin, place, most_bytes)
    return read_base64(url[begin:], place, most_bytes)


def _decoded(text: bytes) -> bytes:
    """Return the bytes of base64. Raises binascii.Error."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        plain = text.translate(None, _SPACE)
        if len(plain) == len(text):
            raise
    return binascii.a2b_base64(plain, strict_mode=True)


def _check_length(characters: int, place: str, most_bytes: int) -> None:
    """Raise PictureTooLarge for more characters of base64 than the bytes may have."""
    most = 4 * (most_bytes // 3 + 1)
    if characters > most + most // _LINES:
        raise _too_large(place, f"{characters} characters of base64", most_bytes)


def _too_large(place: str, size: str, most_bytes: int) -> PictureTooLarge:
    return PictureTooLarge(place, f"has {size}, and {most_bytes} bytes are allowed: shrink it")
