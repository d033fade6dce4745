"""Keys of callers: the file that a node reads, and how a call bears one."""

from pathlib import Path


def keys_file(folder: Path, text: str) -> str:
    """The path of a file of keys. text: a line of NAME KEY [SCOPES] each."""
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return str(path)


def metadata(key: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Of a gRPC call."""
    return (("authorization", f"Bearer {key}"), *more)


def headers(key: str) -> dict[str, str]:
    """Of an HTTP request."""
    return {"Authorization": f"Bearer {key}"}
