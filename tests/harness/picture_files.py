"""Small picture files and their parts of requests, made by each test."""

import base64
import io
import struct
import zlib
from typing import Any

from PIL import Image


def picture_file(width: int = 40, height: int = 30, format: str = "PNG", **options: Any) -> bytes:
    """Return a file of one colour ramp in that format."""
    image = Image.linear_gradient("L").resize((width, height)).convert("RGB")
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def png_chunk(name: bytes, data: bytes) -> bytes:
    check = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)


def png_of(width: int, height: int, *chunks: bytes) -> bytes:
    """Return a PNG file with this size in its header, and chunks between header and end."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"".join((b"\x89PNG\r\n\x1a\n", header, *chunks, png_chunk(b"IEND", b"")))
