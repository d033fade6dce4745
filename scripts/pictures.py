"""Takes the documents' screenshots of the web pages, from real nodes under load.

python -m scripts.pictures docs/images [--seconds 330]

A prefill and a decode node, and a lone node with tiers below its arena, answer conversations of
three tenants over HTTP. Their memory is smaller than the conversations need. Then headless Chromium
opens the decode node's page, the tiers, and the fleet's page with all three nodes and a fourth,
dead one.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasuki.cli.demo import scripted_turns
from tests.harness.daemons import Node
from tests.harness.fleet_process import watching
from tests.harness.http_calls import ask
from tests.harness.pages import Browser, Opened, launched, opened
from tests.harness.processes import free_port
from tests.harness.running_nodes import HTTP, fused_node, node_pair
from tests.harness.waiting import HANG_SECONDS

TENANTS = ("agents", "chat", "search")
_CONVERSATIONS = 3
_ARENA_MIB = 160
_PAUSE_SECONDS = 5.0
_TURNS = 6
"""Number of turns of a conversation; more do not fit into the embedded model's context."""
_DESK = {"width": 1280, "height": 760}
_TELEPHONE = {"width": 390, "height": 844}


class Conversations:
    """A context manager holding conversations with a node until its block ends. Owns their
    threads."""

    def __init__(self, address: str, count: int) -> None:
        self._address = address
        self._over = threading.Event()
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._talk, args=(number,)) for number in range(count)
        ]

    def __enter__(self) -> "Conversations":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(HANG_SECONDS)

    def _talk(self, number: int) -> None:
        chance = random.Random(number)
        for round_number in range(1000):
            messages: list[dict[str, Any]] = []
            name = f"{number}-{round_number}"
            headers = {"x-session-id": name, "x-tasuki-tenant": TENANTS[number % len(TENANTS)]}
            for turn, asked in enumerate(scripted_turns()[:_TURNS]):
                if self._over.wait(chance.expovariate(1 / _PAUSE_SECONDS)):
                    return
                messages += [dict(message) for message in asked]
                body = {"messages": messages, "max_tokens": 8 + chance.randrange(40)}
                own = {**headers, "x-request-id": f"{headers['x-tasuki-tenant']}-{name}-{turn}"}
                reply = ask(self._address, "POST", "/v1/chat/completions", body, own)
                if reply.status != 200:
                    self.failures.append(f"{reply.status}: {reply.body[:200]!r}")
                    break
                messages.append(reply.json["choices"][0]["message"])


@contextmanager
def loaded(node: Node, count: int) -> Iterator[None]:
    with Conversations(node.http_address, count) as talk:
        yield
    for failure in talk.failures:
        print(f"pictures: {failure}", file=sys.stderr)


class Camera:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take(self, seen: Opened, name: str) -> None:
        seen.page.wait_for_timeout(500)
        seen.page.screenshot(path=self._folder / f"{name}.png")
        print(f"pictures: {self._folder / name}.png", flush=True)


def of_node(browser: Browser, camera: Camera, address: str) -> None:
    with opened(browser, address) as seen:
        seen.page.wait_for_selector("[data-total=prompt]")
        seen.page.set_viewport_size({"width": 1280, "height": 1120})
        camera.take(seen, "hits")
        seen.page.set_viewport_size({"width": 1280, "height": 900})
        for view, row, name in (
            ("tree", "#icicle [data-node] >> nth=-1", "tree"),
            ("sessions", "#session-rows [data-request] >> nth=3", "sessions"),
            ("requests", "#request-rows tr[data-key] >> nth=8", "requests"),
            ("handovers", "#handover-rows tr[data-key] >> nth=1", "hand-over"),
        ):
            seen.show(view)
            seen.page.click(row)
            camera.take(seen, name)


def of_tiers(browser: Browser, camera: Camera, address: str) -> None:
    with opened(browser, address) as seen:
        seen.page.wait_for_selector("#tiers [data-tier=host]")
        seen.page.set_viewport_size({"width": 1280, "height": 700})
        seen.page.locator("#tree-words").scroll_into_view_if_needed()
        camera.take(seen, "tiers")


def of_fleet(browser: Browser, camera: Camera, address: str) -> None:
    for view, scheme, size, name in (
        ("nodes", "light", {**_DESK, "height": 860}, "fleet"),
        ("links", "light", _DESK, "fleet-links"),
        ("callers", "dark", _DESK, "fleet-callers"),
        ("nodes", "dark", _TELEPHONE, "fleet-telephone"),
    ):
        with opened(browser, address, scheme=scheme) as seen:
            seen.page.set_viewport_size(size)  # type: ignore[arg-type]
            seen.show(view)
            seen.page.wait_for_selector(f"#{view} tbody tr")
            camera.take(seen, name)


def main() -> int:
    parser = argparse.ArgumentParser(description="The documents' pictures, of real nodes.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=330, help="of load before the pictures")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    camera = Camera(given.folder)
    with tempfile.TemporaryDirectory() as disk:
        tiers = ("--host-cache-gib", "0.06", "--disk-cache", disk, "--disk-cache-gib", "0.1")
        with (
            node_pair(
                *HTTP,
                prefill=("--name", "prefill-1"),
                decode=("--name", "decode-1"),
                arena_mib=_ARENA_MIB,
            ) as (prefill, decode),
            fused_node(*HTTP, *tiers, arena_mib=_ARENA_MIB // 4) as alone,
        ):
            alive = [node.http_address for node in (prefill, decode, alone)]
            nodes = ",".join([*alive, f"127.0.0.1:{free_port()}"])
            targets = ("--ttft-target-ms", "8000", "--itl-target-ms", "500")
            with (
                watching("--nodes", nodes, *targets) as fleet,
                loaded(decode, _CONVERSATIONS),
                loaded(alone, 1),
            ):
                time.sleep(given.seconds)
                with launched() as browser:
                    of_node(browser, camera, decode.http_address)
                    of_tiers(browser, camera, alone.http_address)
                    of_fleet(browser, camera, fleet)
    return 0


if __name__ == "__main__":
    sys.exit(main())
