"""Turn on passwords in an etcd: for its root, and for one user with read and write access to a
prefix of keys.

Needs Python's standard library alone. A second run changes nothing but the user's password.
"""

import argparse
import base64
import json
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

_SECONDS = 10.0
_ROLE = "tasuki"


class Etcd:
    def __init__(self, endpoint: str, ca: str) -> None:
        self._endpoint = endpoint
        self._tls = ssl.create_default_context(cafile=ca) if ca else None
        self._token = ""

    def ask(self, method: str, **body: Any) -> dict[str, Any]:
        """Send one request and return the reply. Raises urllib.error.HTTPError if etcd rejects
        it."""
        request = urllib.request.Request(
            f"{self._endpoint}/v3/{method}", json.dumps(body).encode(), method="POST"
        )
        if self._token:
            request.add_header("Authorization", self._token)
        with urllib.request.urlopen(request, timeout=_SECONDS, context=self._tls) as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer

    def ask_unless_done(self, done: str, method: str, **body: Any) -> None:
        """Send a request to etcd, and accept the error of an earlier success. done: text of this
        error."""
        try:
            self.ask(method, **body)
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if done not in text:
                raise RuntimeError(f"etcd refused {method}: {text}") from error

    def log_in(self, name: str, password: str) -> bool:
        """Log in. Return False if etcd does not require passwords yet."""
        try:
            self._token = self.ask("auth/authenticate", name=name, password=password)["token"]
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            if "not enabled" in text:
                return False
            raise RuntimeError(f"etcd refused the user {name}: {text}") from error
        return True


def _login(path: str) -> tuple[str, str]:
    name, _, password = Path(path).read_text(encoding="utf-8").strip().partition(":")
    if not name or not password:
        raise RuntimeError(f"{path} must hold USER:PASSWORD")
    return name, password


def set_up(etcd: Etcd, root: tuple[str, str], user: tuple[str, str], prefix: str) -> None:
    """Create the users and their roles, and turn passwords on. root: name and password; the name
    must be root. user: name and password. prefix: prefix of the user's keys."""
    name, password = user
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    encoded = [base64.b64encode(key.encode()).decode() for key in (prefix, end)]
    is_on = etcd.log_in(*root)
    etcd.ask_unless_done("already exists", "auth/user/add", name=root[0], password=root[1])
    etcd.ask_unless_done("already exists", "auth/role/add", name="root")
    etcd.ask("auth/user/grant", user=root[0], role="root")
    etcd.ask_unless_done("already exists", "auth/role/add", name=_ROLE)
    etcd.ask(
        "auth/role/grant",
        name=_ROLE,
        perm={"permType": "READWRITE", "key": encoded[0], "range_end": encoded[1]},
    )
    etcd.ask_unless_done("already exists", "auth/user/add", name=name, password=password)
    etcd.ask("auth/user/changepw", name=name, password=password)
    etcd.ask("auth/user/grant", user=name, role=_ROLE)
    if not is_on:
        etcd.ask("auth/enable")


def main() -> int:
    parser = argparse.ArgumentParser(description="Have an etcd ask for passwords.")
    parser.add_argument("--endpoint", required=True, help="its URL")
    parser.add_argument("--ca", default="", help="PEM file of the authority of its certificate")
    parser.add_argument("--root", required=True, help="file with root:PASSWORD")
    parser.add_argument("--login", required=True, help="file with USER:PASSWORD")
    parser.add_argument("--prefix", required=True, help="of the user's keys")
    asked = parser.parse_args()
    try:
        etcd = Etcd(asked.endpoint.rstrip("/"), asked.ca)
        set_up(etcd, _login(asked.root), _login(asked.login), asked.prefix)
    except (OSError, RuntimeError) as error:
        print(f"etcd-users: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
