"""API keys in tests: the key file of a node, and the key in a call."""

from pathlib import Path


def keys_file(folder: Path, text: str) -> str:
    """Write a key file and return its path. text: one line of NAME KEY [SCOPES] per key."""
    path = folder / "keys"
    path.write_text(text, encoding="utf-8")
    return str(path)


def metadata(key: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a gRPC call with this API key."""
    return (("authorization", f"Bearer {key}"), *more)


def headers(key: str) -> dict[str, str]:
    """Return the headers of an HTTP request with this API key."""
    return {"Authorization": f"Bearer {key}"}
