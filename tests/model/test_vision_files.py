"""Encoded pictures: formats, orientation, transparency, bounds, damaged files."""

import io
import struct
import sys
import zlib
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from tasuki.model.vision.grid import PictureError
from tasuki.model.vision.picture_file import (
    PictureBounds,
    PictureHeader,
    PillowMissing,
    decode,
    read_header,
)
from tasuki.model.vision.processor import Size

BOUNDS = PictureBounds()
ORIENTATION = 0x0112


def painted(height: int = 6, width: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """Return the beginning of a PNG file of that size, without pixels."""
    found = b"\x89PNG\r\n\x1a\n"
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")):
        check = zlib.crc32(name + data)
        found += struct.pack(">I", len(data)) + name + data + struct.pack(">I", check)
    return found


@pytest.mark.parametrize(
    ("format", "options"), [("PNG", {}), ("WEBP", {"lossless": True})], ids=["PNG", "WEBP"]
)
def test_lossless_formats_keep_their_pixels(format: str, options: dict[str, Any]) -> None:
    pixels = painted()
    content = encoded(Image.fromarray(pixels.numpy()), format, **options)
    assert read_header(content, BOUNDS) == PictureHeader(format, Size(6, 9))
    assert torch.equal(decode(content, BOUNDS), pixels)


def test_jpeg_is_decoded() -> None:
    flat = Image.new("RGB", (20, 10), (200, 100, 50))
    found = decode(encoded(flat, "JPEG", quality=95), BOUNDS)
    assert found.shape == (10, 20, 3)
    assert float((found.float() - torch.tensor([200.0, 100, 50])).abs().max()) <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_to_size_and_pixels(orientation: int) -> None:
    pixels = painted()
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = encoded(Image.fromarray(pixels.numpy()), "PNG", exif=exif)
    found = decode(content, BOUNDS)
    rows, columns = pixels.flip(0), pixels.flip(1)
    wanted = {
        1: pixels,
        2: columns,
        3: rows.flip(1),
        4: rows,
        5: pixels.transpose(0, 1),
        6: rows.transpose(0, 1),
        7: rows.flip(1).transpose(0, 1),
        8: columns.transpose(0, 1),
    }[orientation]
    assert torch.equal(found, wanted)
    assert read_header(content, BOUNDS).size == Size(*wanted.shape[:2])


def test_a_png_header_is_read_without_pixels() -> None:
    assert read_header(png_header(30, 20), BOUNDS) == PictureHeader("PNG", Size(20, 30))


def test_orientation_behind_the_pixels_of_a_png_is_applied() -> None:
    pixels = painted()
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    content = encoded(Image.fromarray(pixels.numpy()), "PNG", exif=exif)
    begin = content.index(b"eXIf") - 4
    end = begin + 12 + int.from_bytes(content[begin : begin + 4], "big")
    tail = content.index(b"IEND") - 4
    moved = content[:begin] + content[end:tail] + content[begin:end] + content[tail:]
    assert read_header(moved, BOUNDS).size == Size(9, 6)
    assert torch.equal(decode(moved, BOUNDS), pixels.flip(0).transpose(0, 1))


def many_chunks(content: bytes, place: int) -> bytes:
    """Return a PNG file with very many empty chunks at a place."""
    empty = struct.pack(">I4sI", 0, b"teXt", zlib.crc32(b"teXt"))
    return content[:place] + empty * 140_000 + content[place:]


PNG = encoded(Image.new("RGB", (8, 8)), "PNG")
GIF = encoded(Image.new("RGB", (8, 8)), "GIF")
JPEG = encoded(Image.new("RGB", (8, 8)), "JPEG")


@pytest.mark.parametrize(
    "content",
    [
        many_chunks(PNG, PNG.index(b"IEND") - 4),
        many_chunks(PNG, PNG.index(b"IDAT") - 4),
        JPEG[:2] + b"\xff\xfe\0\2" + b"\0" * 200_000 + JPEG[2:],
        JPEG[:2] + b"\xff\xfe\0\2" * 70_000 + JPEG[2:],
        GIF[:-1].partition(b",")[0] + b"!\xfe" + b"\1a" * 70_000 + b"\0;",
    ],
    ids=["chunks behind", "chunks before", "junk", "comments", "blocks"],
)
def test_files_in_very_many_parts_are_refused(content: bytes) -> None:
    with pytest.raises(PictureError, match="is in too many parts"):
        read_header(content, BOUNDS)


def test_transparent_parts_are_white() -> None:
    image = Image.new("RGBA", (2, 1))
    image.putpixel((0, 0), (10, 20, 30, 0))
    image.putpixel((1, 0), (10, 20, 30, 255))
    found = decode(encoded(image, "PNG"), BOUNDS)
    assert found.tolist() == [[[255, 255, 255], [10, 20, 30]]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([1, 2, 3, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    found = decode(encoded(palette, "PNG", transparency=0), BOUNDS)
    assert found.tolist() == [[[255, 255, 255], [40, 50, 60]]]


@pytest.mark.parametrize("mode", ["L", "1", "LA", "P", "I;16"])
def test_other_modes_become_rgb(mode: str) -> None:
    found = decode(encoded(Image.new(mode, (5, 4)), "PNG"), BOUNDS)
    assert found.shape == (4, 5, 3) and found.dtype == torch.uint8


def test_cmyk_becomes_rgb() -> None:
    found = decode(encoded(Image.new("CMYK", (16, 16)), "JPEG"), BOUNDS)
    assert int(found.min()) >= 250


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (4, 3), colour) for colour in ("red", "blue")]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    found = decode(content, BOUNDS)
    assert found.tolist() == [[[255, 0, 0]] * 4] * 3


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no picture",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>",
        encoded(Image.new("RGB", (8, 8)), "BMP"),
        encoded(Image.new("RGB", (8, 8)), "TIFF"),
        encoded(Image.fromarray(painted(64, 64).numpy()), "PNG")[:-200],
        encoded(Image.fromarray(painted(64, 64).numpy()), "JPEG")[:-200],
        png_header(30, 20),
    ],
    ids=["empty", "text", "svg", "bmp", "tiff", "cut png", "cut jpeg", "no pixels"],
)
def test_damaged_and_unserved_files_are_refused(content: bytes) -> None:
    with pytest.raises(PictureError, match=r"cannot be decoded|is no picture"):
        decode(content, BOUNDS)


def test_a_wrong_name_of_the_format_does_not_matter() -> None:
    content = encoded(Image.new("RGB", (8, 8)), "JPEG")
    assert read_header(content, BOUNDS).format == "JPEG"


@pytest.mark.parametrize(
    ("width", "height"), [(8000, 6000), (1, 60_000_000), (13000, 13000), (60000, 60000)]
)
def test_large_pictures_are_refused_by_their_header(width: int, height: int) -> None:
    content = png_header(width, height)
    for read in (read_header, decode):
        with pytest.raises(PictureError, match=r"are allowed; send|too large"):
            read(content, BOUNDS)


def test_large_files_are_refused_before_they_are_opened() -> None:
    with pytest.raises(PictureError, match="has 11 bytes, 10 are allowed"):
        read_header(b"x" * 11, PictureBounds(most_bytes=10))


def test_a_missing_pillow_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PillowMissing, match=r"install tasuki\[vision\]"):
        read_header(b"", BOUNDS)
