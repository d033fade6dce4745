"""Measures the memory a node holds for clients reading nothing: python -m scripts.unread_streams

Starts a node with a cost-free model. For each API it opens 1,000 streams of 4 keys, with bodies of
1 KiB and answers of 1,000 tokens, and reads no byte. Exits with 1 if a stream takes more than 64
KiB of the API server's memory. The engine's process is shown and not judged, because it holds as
much for read streams. Takes about two minutes on two cores.
"""

import json
import resource
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.common.command import show
from scripts.common.probe import resident, tree
from tasuki.bench.load.free.model import free_shape
from tasuki.bench.load.model_folder import write_model_folder
from tasuki.bench.load.node_counters import NodeCounters
from tasuki.bench.load.node_process import NodeProcess, node_process
from tasuki.bench.load.words import word
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

KEYS = ("ann", "bob", "cat", "dan")
MOST_STREAM_BYTES = 64 * 1024
_BODY_BYTES = 1024
_KIB, _MIB = 2**10, 2**20
_RECEIVE_BYTES = 4096
"""Bytes of the receive buffer of a client's socket. It is small, so most unread bytes stay on the
node's side."""
_AHEAD = 64
"""Largest number of streams opened before an earlier one has begun."""
_PATIENCE_SECONDS = 60.0
_STEP_SECONDS = 0.5
_SETTLED_STEPS = 4
_REST_SECONDS = 5.0
_OWNER = "owner-key"
_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
_WARM_STREAMS = 64


@dataclass(frozen=True)
class Settings:
    streams: int = option(1000, "at a time")
    tokens: int = option(1000, "of each answer")
    api: str = option("", "one of chats, completions, responses, messages; none: each in turn")
    front_kib: float = option(MOST_STREAM_BYTES / _KIB, "that a stream may take of the front, KiB")
    patience: float = option(180.0, "seconds for all answers of an API to be computed")


def _filled(body: Callable[[str], dict[str, object]]) -> bytes:
    """Return the request body as JSON, filled with text to the wanted length."""
    around = len(json.dumps(body("")))
    words = [" " + word(number) for number in range((_BODY_BYTES - around) // 5)]
    return json.dumps(body("".join(words))).encode()


def _chat(text: str, tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "stream": True}


def _completion(text: str, tokens: int) -> dict[str, object]:
    return {"prompt": text, "max_tokens": tokens, "stream": True}


def _response(text: str, tokens: int) -> dict[str, object]:
    metadata = {"purpose": "unread"}
    return {"input": text, "max_output_tokens": tokens, "stream": True, "metadata": metadata}


APIS: dict[str, tuple[str, Callable[[str, int], dict[str, object]]]] = {
    "chats": ("/v1/chat/completions", _chat),
    "completions": ("/v1/completions", _completion),
    "responses": ("/v1/responses", _response),
    "messages": ("/v1/messages", _chat),
}


@contextmanager
def unread(address: str, path: str, body: bytes, keys: Sequence[str]) -> Iterator[None]:
    """Open streams of each key inside the block, and read none of them."""
    host, _, port = address.rpartition(":")
    opened: list[socket.socket] = []
    with ExitStack() as held:
        for number, key in enumerate(keys):
            connection = held.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
            connection.settimeout(_PATIENCE_SECONDS)
            connection.connect((host, int(port)))
            head = (
                f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}-key\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            opened.append(connection)
            if number >= _AHEAD:
                # The node allows only few connections without an admitted request.
                _check_begun(opened[number - _AHEAD], path)
        for connection in opened:
            _check_begun(connection, path)
        yield


def _check_begun(connection: socket.socket, path: str) -> None:
    """Raise RuntimeError unless the reply's status is 200. A peek reads nothing."""
    status = connection.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL)[9:]
    if status != b"200":
        raise RuntimeError(f"{path} was answered by {status!r}: {connection.recv(1000)!r}")


@contextmanager
def free_node(streams: int, folder: Path) -> Iterator[NodeProcess]:
    model = folder / "model"
    write_model_folder(model, free_shape(4))
    (model / "chat_template.jinja").write_text(_TEMPLATE)
    keys = folder / "keys"
    keys.write_text("".join(f"{key} {key}-key caller\n" for key in KEYS))
    flags = ("--model", str(model), "--max-batch", str(streams), "--draft-layer", "off")
    apart = ("--engine-process", "process", "--arena-mib", "512")
    more = ("--api-keys", str(keys), "--api-key", _OWNER)
    with node_process("serve", (), (*flags, *apart, *more), folder / "node.log") as node:
        yield node


@dataclass(frozen=True)
class Measured:
    """Resident bytes of a process: before the streams, the peak while they were open, and after
    them."""

    before: int
    peak: int
    after: int

    def kib_of_each(self, streams: int) -> float:
        """Return the process's growth while the streams were open, for each of `streams` streams,
        in KiB."""
        return (self.peak - self.before) / streams / _KIB


def measured(
    node: NodeProcess, engine: int, settings: Settings, api: str, streams: int
) -> tuple[Measured, Measured]:
    """Measure the memory of the API server's and the engine's process, in this order, with open
    streams of one API. Raises RuntimeError."""
    path, made = APIS[api]
    body = _filled(lambda text: made(text, settings.tokens))
    keys = [KEYS[number % len(KEYS)] for number in range(streams)]
    pids = (node.pid, engine)
    made_before = _tokens_made(node)
    before = [resident(pid) for pid in pids]
    peak = list(before)
    with unread(node.http, path, body, keys):
        ends = time.monotonic() + settings.patience
        settled = 0
        while settled < _SETTLED_STEPS:
            if time.monotonic() > ends:
                raise RuntimeError(f"{api}: not all answers were made in {settings.patience:g} s")
            time.sleep(_STEP_SECONDS)
            peak = [max(resident(pid), most) for pid, most in zip(pids, peak, strict=True)]
            settled += _tokens_made(node) - made_before >= streams * settings.tokens
    time.sleep(_REST_SECONDS)
    after = [resident(pid) for pid in pids]
    front, engines = (Measured(*found) for found in zip(before, peak, after, strict=True))
    return front, engines


def _tokens_made(node: NodeProcess) -> float:
    """Return the number of tokens of all ended answers."""
    request = urllib.request.Request(
        f"http://{node.http}/metrics", headers={"Authorization": f"Bearer {_OWNER}"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return NodeCounters(reply.read().decode()).total("generated_tokens_total")


def main() -> int:
    settings = parse_config(
        "python -m scripts.unread_streams", "Streams that nobody reads.", sys.argv[1:], Settings
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    worst = 0.0
    with (
        tempfile.TemporaryDirectory() as folder,
        free_node(settings.streams, Path(folder)) as node,
    ):
        engine = tree(node.pid)[1]
        for api in [settings.api] if settings.api else APIS:
            measured(node, engine, settings, api, _WARM_STREAMS)
            front, engines = measured(node, engine, settings, api, settings.streams)
            worst = max(worst, front.kib_of_each(settings.streams))
            for name, found in (("front", front), ("engine", engines)):
                show(
                    f"{api:<12}{name:<8}{found.before / _MIB:>7.0f} MiB before"
                    f"{found.peak / _MIB:>7.0f} at most{found.after / _MIB:>7.0f} after"
                    f"{found.kib_of_each(settings.streams):>8.1f} KiB a stream"
                )
    show("PASSED" if worst <= settings.front_kib else "FAILED")
    return int(worst > settings.front_kib)


if __name__ == "__main__":
    sys.exit(main())
