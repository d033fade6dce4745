"""Who this node is to a remote store: from the environment, or from a file.

Nothing of it is ever printed: not by repr(), nor in an error.
"""

import configparser
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .remote_failed import RemoteFailed

_KEY, _SECRET, _TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_PROFILE = "default"


@dataclass(frozen=True)
class Credentials:
    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False, default=None)


def read_credentials(file: str | None, environment: Mapping[str, str] = os.environ) -> Credentials:
    """file: as ~/.aws/credentials, its profile `default`; None: the environment has them. Raises
    RemoteFailed."""
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
        # Its own words would show a line of the file.
        raise RemoteFailed(f"{path} is not written as a credentials file is") from None
    except RemoteFailed:
        raise
    except OSError as error:
        raise RemoteFailed(f"{path} cannot be read: {error.strerror}") from None
