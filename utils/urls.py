"""Checks of settings that are URLs and origins. Each error names the setting and an example."""

from urllib.parse import SplitResult, urlsplit

_WEB = ("http", "https")


def check_url(setting: str, url: str, example: str) -> None:
    """Raise ValueError unless `url` is http:// or https:// with a host. setting: its name. example:
    a URL that would do."""
    if not _has_host(url):
        raise ValueError(f"{setting} {url!r} is not a URL: write for example {example}")


def check_origin(setting: str, origin: str) -> None:
    """Raise ValueError unless `origin` is SCHEME://HOST[:PORT], as browsers send it. setting: its
    name."""
    split = _split(origin.rstrip("/"))
    if split is None or not split.netloc or split.path or split.query or " " in origin:
        raise ValueError(
            f"{setting} {origin!r} is not an origin: write for example https://chat.example, or *"
        )


def check_bucket(setting: str, url: str) -> None:
    """Raise ValueError unless `url` is s3://BUCKET[/PREFIX]. setting: its name. The error omits
    a password in the URL."""
    split = _split(url)
    if split is None or split.scheme != "s3" or not split.netloc or split.username or split.query:
        raise ValueError(
            f"{setting} is not s3://BUCKET[/PREFIX]: write for example s3://cache/qwen"
        )


def _has_host(url: str) -> bool:
    split = _split(url)
    return split is not None and split.scheme in _WEB and bool(split.hostname) and " " not in url


def _split(url: str) -> SplitResult | None:
    """Return the parts of `url`, or None for one without valid parts."""
    try:
        split = urlsplit(url)
        split.port  # noqa: B018 - raises ValueError for a port that is no number
    except ValueError:
        return None
    return split
