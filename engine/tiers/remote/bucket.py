"""A client for objects in one bucket of an S3 store, and its credentials."""

import configparser
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from tasuki.engine.tiers.store import Patience
from tasuki.utils.signatures import Work

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Config, S3Store


class RemoteFailed(OSError):
    """A failed operation of the remote store. The requested data is computed instead."""


_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_PROFILE = "default"


@dataclass(frozen=True)
class Credentials:
    """This node's identity at a remote store, from the environment or from a file.

    Its values are never printed, neither by repr() nor in an error. token: the session token, if
    any.
    """

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


def read_credentials(file: str | None, environment: Mapping[str, str] = os.environ) -> Credentials:
    """Read the credentials. file: in the format of ~/.aws/credentials, profile `default`; None: use
    the environment. Raises RemoteFailed."""
    if file is None:
        found, place = environment, "the environment"
    else:
        found, place = _profile(Path(file)), f"{file}, profile {_PROFILE}"
    try:
        return Credentials(found[_KEY], found[_SECRET], found.get(_TOKEN))
    except KeyError as error:
        raise RemoteFailed(
            f"{error.args[0]} is not in {place}: set it, or give a file with remote_credentials"
        ) from None


def _profile(path: Path) -> dict[str, str]:
    try:
        with path.open(encoding="utf-8") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise RemoteFailed(f"{path} may be read by other users: chmod 600 it")
            parser = configparser.ConfigParser(interpolation=None)
            parser.read_file(file)
            return {name.upper(): value for name, value in parser[_PROFILE].items()}
    except KeyError:
        raise RemoteFailed(f"{path} has no profile {_PROFILE}") from None
    except configparser.Error:
        # The error's own text would show a line of the file.
        raise RemoteFailed(f"{path} is not written as a credentials file is") from None
    except RemoteFailed:
        raise
    except OSError as error:
        raise RemoteFailed(f"{path} cannot be read: {error.strerror}") from None


Found = TypeVar("Found")

_CONNECT_SECONDS, _REQUEST_SECONDS, _RETRY_SECONDS = 2.0, 5.0, 5.0
_RETRIES = 1
_PAUSE_SECONDS = 30.0
"""Seconds without requests to the store after three failures in a row."""
_REGION = "us-east-1"
_STATUS = re.compile(r"status code: (\d{3}[A-Za-z ]*)")


@dataclass(frozen=True)
class Listed:
    """One object in a listing of the store. modified: time of its last change, in seconds by the
    store's clock."""

    name: str
    modified: float


def _seconds(meta: "ObjectMeta") -> float:
    return meta["last_modified"].timestamp()


class Bucket:
    """Objects of one folder in a bucket of an S3 store. Each call has a time limit.

    The client is obstore, based on Apache Arrow's object_store. It signs, retries and bounds each
    request; the interpreter lock is free while bytes move. Thread rule: any thread.

    Each call raises RemoteFailed. While the store is paused, it raises at once.
    """

    def __init__(self, store: "S3Store", patience: Patience | None = None) -> None:
        self._store = store
        self._patience = patience or Patience(_PAUSE_SECONDS)

    @property
    def is_paused(self) -> bool:
        return self._patience.is_over

    def turn_to(self, other: "Bucket") -> None:
        """Use the other bucket's folder from now on, for each new call."""
        self._store = other._store

    def put(self, name: str, content: bytes | memoryview) -> None:
        import obstore

        self._ask("put", name, lambda: obstore.put(self._store, name, content))

    def get(self, name: str, most: int) -> bytes:
        """Return the object's content. Raises RemoteFailed if it has more than `most` bytes."""
        import obstore

        def ask() -> bytes:
            found = obstore.get(self._store, name)
            if found.meta["size"] > most:
                raise ValueError(f"{found.meta['size']} bytes, {most} at most")
            return bytes(found.bytes())

        return self._ask("get", name, ask)

    def ranges(
        self, name: str, starts: Sequence[int], lengths: Sequence[int]
    ) -> Sequence[memoryview]:
        """Return byte ranges of the object, each of its length. starts, lengths: in bytes."""
        import obstore

        def ask() -> list[memoryview]:
            found = obstore.get_ranges(self._store, name, starts=starts, lengths=lengths)
            return [memoryview(each) for each in found]

        found = self._ask("get", name, ask)
        if [len(each) for each in found] != list(lengths):
            raise RemoteFailed(f"get of {name}: another length than was asked for")
        return found

    def names(self, folder: str) -> list[Listed]:
        """Return the first thousand objects of a folder in the bucket."""
        import obstore

        def ask() -> list[Listed]:
            for chunk in obstore.list(self._store, prefix=folder, chunk_size=1000):
                return [Listed(each["path"], _seconds(each)) for each in chunk]
            return []

        return self._ask("list", folder, ask)

    def modified(self, name: str) -> float | None:
        """Return the time of the object's last change, in seconds by the store's clock; None if
        there is no such object."""
        import obstore

        def ask() -> float | None:
            try:
                return _seconds(obstore.head(self._store, name))
            except FileNotFoundError:
                return None

        return self._ask("head", name, ask)

    def delete(self, name: str) -> None:
        import obstore

        self._ask("delete", name, lambda: obstore.delete(self._store, name))

    def _ask(self, what: str, name: str, call: Work[Found]) -> Found:
        if self._patience.is_over:
            raise RemoteFailed(f"the store failed again and again: {what} of {name} waits")
        try:
            found = call()
        except FileNotFoundError:
            # It answered.
            self._patience.worked()
            raise RemoteFailed(f"{what} of {name}: there is no such object") from None
        except Exception as error:
            self._patience.failed()
            raise RemoteFailed(f"{what} of {name}: {_why(error)}") from None
        self._patience.worked()
        return found


def _why(error: Exception) -> str:
    """Describe the error without the store's own text, because it may identify the client."""
    status = _STATUS.search(str(error))
    kind = type(error).__name__
    return kind if status is None else f"{kind}, {status[1].strip()}"


def open_bucket(
    url: str,
    endpoint: str | None,
    folder: str,
    credentials: Credentials,
    environment: Mapping[str, str] = os.environ,
) -> Bucket:
    """Open a bucket, without a request to the store. url: s3://BUCKET[/PREFIX]. endpoint: the
    store's URL; None: AWS_ENDPOINT_URL, or AWS itself. folder: folder below the prefix. Raises
    RemoteFailed."""
    try:
        from obstore.store import S3Store
    except ImportError:
        raise RemoteFailed("its client is not installed: pip install 'tasuki[s3]'") from None
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.netloc or parts.username or parts.query:
        raise RemoteFailed(f"{parts.scheme}://{parts.hostname or ''} is not s3://BUCKET[/PREFIX]")
    endpoint = endpoint or environment.get("AWS_ENDPOINT_URL")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _REGION
    config: S3Config = {
        "access_key_id": credentials.key,
        "secret_access_key": credentials.secret,
        "region": region,
    }
    if endpoint is not None:
        config["endpoint"] = endpoint
    if credentials.token is not None:
        config["session_token"] = credentials.token
    store = S3Store(
        parts.netloc,
        prefix="/".join(part for part in (parts.path.strip("/"), folder) if part),
        config=config,
        client_options={
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
            "timeout": timedelta(seconds=_REQUEST_SECONDS),
        },
        retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )
    return Bucket(store)
