"""Tests of a node's page with pictures, in a real browser: the tile, the list and one request."""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ask
from tests.harness.pages import Browser, Opened, opened
from tests.harness.picture_answers import CASES, CHAT, FOLDER, messages_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running
from tests.harness.waiting import until

pytestmark = needs_goldens


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """Yield a node after a turn with one picture, and one with two."""
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        for name in ("middle", "turn2"):
            body = {
                "messages": messages_of(CASES[name]),
                "max_tokens": len(CASES[name]["greedy"]),
                "temperature": 0,
                "ignore_eos": True,
            }
            reply = ask(found.http_address, "POST", CHAT, body, {"x-request-id": name})
            assert reply.status == 200, reply.body
        yield found


def words(seen: Opened, selector: str) -> str:
    """Return an element's text on one line."""
    return " ".join(seen.text(selector).split())


def test_a_tile_counts_pictures_and_their_rows(browser: Browser, node: Node) -> None:
    with opened(browser, node.http_address) as seen:
        figures = partial(words, seen, "#figures")
        until(lambda: "1 skipped, 2 encoded" in figures(), figures, seconds=20)
        assert "Pictures 3" in figures() and "of 512.0 MiB" in figures()


def test_a_request_is_shown_with_each_of_its_pictures(browser: Browser, node: Node) -> None:
    with opened(browser, node.http_address, "/#requests") as seen:
        rows = partial(words, seen, "#request-rows")
        until(lambda: "1 skipped, 1 encoded" in rows(), rows, seconds=20)
        seen.page.locator("#request-rows tbody tr", has_text="turn2").first.click()
        story = partial(words, seen, "#request")
        until(lambda: "messages[0].content[1] skipped: 12 tokens" in story(), story, seconds=20)
        assert ", tower " in story() and ", decode " in story()
