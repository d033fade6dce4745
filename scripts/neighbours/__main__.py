"""`python -m scripts.neighbours`: measures a quiet client beside two clients with the worst allowed
requests.

Starts a node with three API keys. Two keys send eight requests at once, each abandoned after five
seconds; the third chats once a second. Prints the quiet client's first-token times alone, beside as
many plain streams, and beside the worst requests. Also prints /health times and the work left over
afterwards. Exit status 1 if a bound is exceeded. The bounds are for an otherwise idle machine.
"""

import argparse
import http.client
import json
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from scripts.common.daemons import ModuleDaemon
from scripts.common.probe import Probe, resident, tree, tree_seconds
from scripts.neighbours.model_folder import write_chat_folder
from scripts.neighbours.noise import ANSWER, STAND_INS, Crowd, plain, send, worst
from tasuki.cli.launcher import Daemon

KEYS = ("ann", "bob", "cat")
QUIET = "cat"
AT_ONCE = 8
CONTEXT_TOKENS = 262_144
"""The context length of Qwen3.5."""
LEAVE_SECONDS = 5.0
MOST_SLOWER = 2.0
MOST_HEALTH_SECONDS = 0.100
MOST_KEPT_BYTES = 64 << 20
MOST_IDLE_SHARE = 0.10
_REST_SECONDS = 5.0


class ChatLost(Exception):
    """The stream ended with an error event; the message is the event."""


def _memory(pid: int) -> int:
    return sum(map(resident, tree(pid)))


def _first_token(address: str, number: int) -> tuple[float | None, bool]:
    """Send one chat. Returns the seconds until the first token (None without one), and True if the
    answer was whole."""
    content = f"Where does Elizabeth live, in chapter {number}?"
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {QUIET}-key"}
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        begun = time.perf_counter()
        first = None
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
            reply = connection.getresponse()
            for line in reply:
                if first is None and _has_text(line):
                    first = time.perf_counter() - begun
                if line.startswith(b"data: [DONE]"):
                    return first, True
        except (OSError, http.client.HTTPException, ChatLost) as error:
            print(f"chat {number} was lost after {time.perf_counter() - begun:.1f} s: {error}")
            return first, False
    return first, False


def _has_text(line: bytes) -> bool:
    """Return True if an event of a stream has text of the answer; the first event has only a role.
    Raises ChatLost for an error event."""
    if not line.startswith(b"data: {"):
        return False
    event = json.loads(line[6:])
    if "choices" not in event:
        raise ChatLost(line.decode())
    return any(choice["delta"].get("content") for choice in event["choices"])


def _chats(address: str, seconds: float) -> tuple[list[float], int]:
    """Start one chat a second. Returns the seconds to each first token, and the number of chats not
    answered whole."""
    firsts: list[float] = []
    lost: list[int] = []
    threads = []
    ends = time.monotonic() + seconds
    number = 0
    while time.monotonic() < ends:
        number += 1

        def chat(number: int = number) -> None:
            first, whole = _first_token(address, number)
            if first is None or not whole:
                lost.append(number)
            else:
                firsts.append(first)

        threads.append(threading.Thread(target=chat))
        threads[-1].start()
        time.sleep(1.0)
    for thread in threads:
        thread.join()
    return firsts, len(lost)


@contextmanager
def _noise(crowd: Crowd) -> "Iterator[Counter[tuple[str, str]]]":
    """Send the crowd's requests until the block ends. Yields counts by request name and outcome,
    filled at the block's end."""
    sent: Counter[tuple[str, str]] = Counter()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=crowd.run, args=(theirs,))
    process.start()
    ours.recv()
    try:
        yield sent
    finally:
        ours.send("end")
        sent.update(ours.recv())
        process.join()


def _warm_up(address: str) -> None:
    """Send requests starting the node's grammar-trial server and all its threads, because any
    client would start these."""
    chat = {"role": "user", "content": "Where does Elizabeth live? " * 50}
    asked = {"messages": [chat], "max_tokens": 8, "guided_regex": "[a-z]{3}"}
    for number in range(16):
        body = json.dumps({**asked, "cache_salt": str(number)}).encode()
        send(address, f"{QUIET}-key", ("/v1/chat/completions", body), 120.0)


def _part(values: list[float], share: float) -> float:
    if not values:
        return float("nan")
    return statistics.quantiles([*values, values[-1]], n=1000)[int(share * 999)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.neighbours")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the noise")
    parser.add_argument("--alone", type=float, default=30.0, help="seconds of chats before, twice")
    parser.add_argument("--seed", type=int, default=1, help="of the order of the noise")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{name} {name}-key caller\n" for name in KEYS))
        model = write_chat_folder(Path(folder), ANSWER, CONTEXT_TOKENS)
        flags = ["--model", str(model / "model"), "--http-bind", "127.0.0.1:0"]
        flags += ["--arena-mib", "64", "--draft-layer", "off", "--api-keys", str(keys)]
        program = ("scripts.neighbours.node", str(model / "answer.json"))
        node = ModuleDaemon(program, "serve", flags)
        try:
            node.wait_ready()
            address = node.http_address
            assert address is not None
            return _judged(node, address, given)
        finally:
            node.stop()
            for line in node.last_words[-5:]:
                print("node:", line)


def _judged(node: Daemon, address: str, given: argparse.Namespace) -> int:
    _warm_up(address)
    keys = [f"{key}-key" for key in KEYS if key != QUIET]
    some = Crowd(address, keys, plain, (), AT_ONCE, LEAVE_SECONDS, given.seed)
    alone, _ = _chats(address, given.alone)
    with _noise(some):
        among, _ = _chats(address, given.alone)
    before = _memory(node.pid)
    with (
        Probe(address, node.pid, 60.0, 0.02) as health,
        _noise(replace(some, shapes=worst, stand_ins=STAND_INS)) as sent,
    ):
        beside, lost = _chats(address, given.seconds)
    time.sleep(_REST_SECONDS)
    began, used = time.monotonic(), tree_seconds(node.pid)
    time.sleep(2.0)
    idle = (tree_seconds(node.pid) - used) / (time.monotonic() - began)
    kept = _memory(node.pid) - before
    slower = _part(beside, 0.95) / _part(alone, 0.95)
    rows = (
        ("requests of the two others", f"{sent.total()}", True),
        ("chats not answered whole", f"{lost} of {lost + len(beside)}", lost == 0),
        ("first token alone, p50 p95 max", _milliseconds(alone), True),
        ("first token beside 16 streams", _milliseconds(among), True),
        ("first token beside, p50 p95 max", _milliseconds(beside), True),
        ("p95 beside / beside 16 streams", f"{_part(beside, 0.95) / _part(among, 0.95):.2f}", True),
        ("p95 beside / alone", f"{slower:.2f}", slower <= MOST_SLOWER),
        (
            "/health p99",
            f"{1000 * _part(health.waits, 0.99):.1f} ms",
            _part(health.waits, 0.99) <= MOST_HEALTH_SECONDS,
        ),
        ("/health refused", f"{health.refused}", health.refused == 0),
        ("processors busy, 5 s after", f"{idle:.2f}", idle <= MOST_IDLE_SHARE),
        ("memory kept, 5 s after", f"{kept / 2**20:.0f} MiB", kept <= MOST_KEPT_BYTES),
    )
    for (body, ended), count in sorted(sent.items()):
        print(f"{body:<40}{ended:<24}{count:>6}")
    for name, value, holds in rows:
        print(f"{name:<32}{value:>18}{'' if holds else '   over its bound'}", flush=True)
    return int(not all(holds for _, _, holds in rows))


def _milliseconds(seconds: list[float]) -> str:
    parts = (_part(seconds, 0.5), _part(seconds, 0.95), max(seconds, default=float("nan")))
    return " ".join(f"{1000 * part:.0f}" for part in parts) + " ms"


if __name__ == "__main__":
    sys.exit(main())
