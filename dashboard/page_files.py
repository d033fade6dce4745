"""The page's files, read from the package.

Owns their bytes. No file is made at run time, so every node and every recording has the same page.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
INDEX = "index.html"


@dataclass(frozen=True)
class PageFile:
    content: bytes
    content_type: str


def load_page() -> dict[str, PageFile]:
    """Return every file by its path below the page's folder, for example `main.js`."""
    return dict(_walk(files(__package__) / "page", ""))


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, PageFile]]:
    for item in folder.iterdir():
        name = f"{prefix}{item.name}"
        if item.is_dir():
            yield from _walk(item, f"{name}/")
        elif (kind := _TYPES.get("." + item.name.rsplit(".", 1)[-1])) is not None:
            yield name, PageFile(item.read_bytes(), kind)
