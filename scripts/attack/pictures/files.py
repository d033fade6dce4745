"""Files for attacks with pictures: odd, broken and lying, and harmless to other software.

Large ones are large by their header alone, or unpack to no more than a node's own bounds. Pure.
"""

import base64
import zlib

from tests.harness.picture_files import data_url, picture_file, png_chunk, png_of

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>'
SMALL = picture_file()


def url(content: bytes, kind: str = "image/png") -> str:
    return data_url(content, kind)


def declared(width: int, height: int) -> bytes:
    """Return a PNG file of a size by its header, with a few bytes of pixels."""
    return png_of(width, height, png_chunk(b"IDAT", zlib.compress(bytes(64))))


def flat(width: int, height: int) -> bytes:
    """Return a valid PNG file of black pixels, a thousandth of their size."""
    packing = zlib.compressobj(9)
    row = bytes(1 + 3 * width)
    data = b"".join(packing.compress(row) for _ in range(height)) + packing.flush()
    return png_of(width, height, png_chunk(b"IDAT", data))


def unpacking_to_more() -> bytes:
    """Return a PNG file with pixels of another size than its header's."""
    whole = flat(2000, 1000)
    begin, end = 33 + 8, len(whole) - 16
    return png_of(40, 30, png_chunk(b"IDAT", whole[begin:end]))


def changed_header() -> bytes:
    """Return a JPEG file with a larger height in its header than it has."""
    content = bytearray(picture_file(64, 48, "JPEG"))
    place = content.index(b"\xff\xc0") + 5
    content[place : place + 2] = (4000).to_bytes(2, "big")
    return bytes(content)


def spaced(content: bytes, space: str, every: int) -> str:
    """Return a URL with white space in its base64."""
    text = base64.b64encode(content).decode()
    lines = (text[begin : begin + every] for begin in range(0, len(text), every))
    return "data:image/png;base64," + space.join(lines)


def animated() -> bytes:
    """Return a GIF file of many frames."""
    whole = picture_file(32, 24, "GIF")
    begin = whole.rindex(b"\x2c")
    return whole[:-1] + whole[begin:-1] * 2000 + b";"
