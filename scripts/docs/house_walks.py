"""`python -m scripts.docs.house_walks [--list]`: counts the files a newcomer must open to follow a
request.

Traces three walks on the CPU and counts the production modules with a function run. The walks are
one chat over HTTP with a fused node, one decode step of one sequence, and one transfer between two
engines. A first walk of the same kind, not counted, runs the one-time code. `--list` prints the
modules too.
"""

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tasuki.cli.main import main as tasuki
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, prompt, submit, tiny_parts

from .house_counts import ROOMS, ROOT

_MODEL = ROOT / "model" / "embedded"
_START_SECONDS = 120.0
_ANSWER_TOKENS = 8


class Trace:
    """A recorder of the production modules with functions run in any thread during a walk."""

    def __init__(self) -> None:
        self._walked: set[str] | None = None
        sys.setprofile(self._record)
        threading.setprofile(self._record)

    def _record(self, frame: FrameType, event: str, argument: object) -> None:
        if self._walked is not None and event == "call":
            self._walked.add(frame.f_code.co_filename)

    @contextmanager
    def walk(self) -> Iterator[set[str]]:
        """Record a walk in a block. Yields the set of module paths; it is whole after the block."""
        modules: set[str] = set()
        self._walked = files = set()
        try:
            yield modules
        finally:
            self._walked = None
            modules |= set(filter(None, map(_module, files)))


def _module(file: str) -> str | None:
    """Return the path of a production module below the root, or None for any other file."""
    path = Path(file)
    if "site-packages" in path.parts or not path.is_file():
        return None
    path = path.resolve()
    if ROOT not in path.parents or path.name == "__init__.py":
        return None
    relative = path.relative_to(ROOT)
    return str(relative) if relative.parts[0] in ROOMS else None


def chat(trace: Trace) -> set[str]:
    """Record one chat over HTTP with a fused node serving the embedded model."""
    walked: set[str] = set()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    def converse() -> None:
        try:
            _await_node(address)
            _ask(address, "Name a colour.")
            with trace.walk() as modules:
                _ask(address, "Name a city by the sea.")
            walked.update(modules)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    client = threading.Thread(target=converse)
    client.start()
    flags = ["--http-bind", address, "--bind", "127.0.0.1:0", "--engine-process", "thread"]
    # Signals reach the main thread, so the node runs here and its client in a thread.
    tasuki(["serve", str(_MODEL), *flags])
    client.join()
    return walked


def _await_node(address: str) -> None:
    """Wait until a server listens at the address. Raises TimeoutError after `_START_SECONDS`."""
    host, port = address.split(":")
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError(f"no server listened at {address} within {_START_SECONDS:.0f} s")


def _ask(address: str, text: str) -> None:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": _ANSWER_TOKENS}
    connection = http.client.HTTPConnection(address, timeout=_START_SECONDS)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != http.HTTPStatus.OK:
        raise RuntimeError(f"{address} answered {answer.status}: {content!r}")


def decode_step(trace: Trace) -> set[str]:
    """Record one decode step of one sequence."""
    engine = Lone(engine_config(Path("tiny")), parts=tiny_parts())
    engine.post(submit("warm", prompt(40, seed=1), 32))
    engine.steps(8)
    with trace.walk() as modules:
        # The engine alone: the harness's handling of messages is not part of a step.
        engine.engine.step()
    return modules


def hand_over(trace: Trace) -> set[str]:
    """Record one transfer between two engines, without the nodes around them."""
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        pair.join(pair.begin(submit("warm", prompt(150, seed=1), 4)))
        with trace.walk() as modules:
            pair.join(pair.begin(submit("walked", prompt(150, seed=2), 4)))
    return modules


WALKS: dict[str, Callable[[Trace], set[str]]] = {
    "a decode step": decode_step,
    "a hand-over between engines": hand_over,
    "one chat": chat,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the files that three walks run.")
    parser.add_argument("--list", action="store_true", help="print each module")
    listed = parser.parse_args().list
    trace = Trace()
    print("| files run by | modules | by room |\n| --- | --- | --- |")
    walked = {name: sorted(walk(trace)) for name, walk in WALKS.items()}
    for name, modules in walked.items():
        rooms = sorted({module.split("/")[0] for module in modules})
        counts = (f"{room} {sum(m.startswith(room + '/') for m in modules)}" for room in rooms)
        print(f"| {name} | {len(modules)} | {', '.join(counts)} |")
    if listed:
        for name, modules in walked.items():
            print(f"\n{name}:", *modules, sep="\n  ")
    return 0


if __name__ == "__main__":
    sys.exit(main())
