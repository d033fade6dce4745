"""Tests of the page in a real browser: its numbers equal those reported to clients, and its views
open by clicks."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tasuki.cli import demo as demo_script
from tasuki.client.prompt import Prompt
from tasuki.engine.messages import Usage
from tests.harness.daemons import Node, asked, random_prompt
from tests.harness.http_calls import ask, fetched
from tests.harness.metrics_text import scraped
from tests.harness.pages import Browser, Opened, grave_findings, opened
from tests.harness.running_nodes import HTTP, node_pair
from tests.harness.waiting import until

TURNS = 3
JUDGED = (390, 1280)


@dataclass(frozen=True)
class Demo:
    """A pair with little memory after the demo's first turns. Other prompts between the turns
    evicted their states, and the last request was given up. usages: usages of the demo's turns,
    then of the others."""

    prefill: Node
    decode: Node
    usages: list[Usage]


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    with node_pair(*HTTP, arena_mib=15, decode=("--speculate", "mtp", "--draft-count", "most")) as (
        prefill,
        decode,
    ):
        client = decode.client
        turns, others = [], []
        with client.open_session() as session, client.open_session() as crowd:
            for number, messages in enumerate(demo_script.scripted_turns()[:TURNS]):
                # A request with pages in so small an arena would leave no memory to pull into.
                prefill.assert_at_rest()
                session.append(Prompt(messages=messages))
                turns.append(session.generate(max_new_tokens=12, ignore_eos=True).result().usage)
                for seed in range(2):
                    prompt = random_prompt(400, 10 * number + seed)
                    others.append(asked(decode, prompt, b"", 2).result().usage)
                crowd.append(Prompt(token_ids=random_prompt(130, number)))
                others.append(crowd.generate(max_new_tokens=4, ignore_eos=True).result().usage)
        usages = [*turns, *others]
        left = asked(decode, random_prompt(90, 3), b"", 900)
        next(iter(left))
        left.cancel()
        until(lambda: "aborted" in faults_told(decode), "the cancelled request has not ended")
        yield Demo(prefill, decode, usages)


def wait_live(seen: Opened) -> None:
    """Wait for the node's first message; the page then draws the current view again."""
    seen.page.wait_for_selector("body[data-ended]")


def faults_told(node: Node) -> str:
    return fetched(node.http_address, "/debug/faults").decode()


def counters(node: Node, name: str) -> dict[str, int]:
    """Return a counter's samples by the value of their one label."""
    label = re.compile(rf"{name}(?:\{{\w+=(\w+)\}})?")
    found = {label.fullmatch(key): value for key, value in scraped(node.http_address).items()}
    return {match[1] or "": int(value) for match, value in found.items() if match is not None}


def drafts(node: Node, name: str) -> int:
    """Return a token counter of the draft layer, summed over all positions."""
    found = scraped(node.http_address).items()
    counted = f"tasuki_{name}_tokens_total{{drafter=mtp,"
    return sum(int(number) for key, number in found if key.startswith(counted))


def test_its_numbers_are_the_counters_and_what_the_client_was_told(
    browser: Browser, demo: Demo
) -> None:
    with opened(browser, demo.decode.http_address) as seen:
        seen.page.wait_for_selector("[data-total=prompt]")
        lost = counters(demo.decode, "tasuki_request_lost_tokens_total")
        shown = {cause: seen.number(f"[data-total='lost.{cause}']") for cause in lost}
        assert shown == lost
        prompt, usable = (seen.number(f"[data-total={name}]") for name in ("prompt", "usable"))
        assert {"": prompt} == counters(demo.decode, "tasuki_request_prompt_tokens_total")
        assert {"": usable} == counters(demo.decode, "tasuki_request_usable_tokens_total")
        hits = [usage.hit for usage in demo.usages]
        assert usable == sum(hit.usable_tokens for hit in hits if hit is not None) > 0
        assert prompt == sum(usage.prompt_tokens for usage in demo.usages) + 90
        seen.page.click("summary")
        stats = demo.decode.stats()
        for pool, counts in (("slots", stats.slots), ("pages", stats.pages)):
            free = f"[data-pool={pool}][data-owner=free][data-value='{counts['free']}']"
            seen.page.wait_for_selector(free)
        seen.page.wait_for_selector("#waterfall canvas")
        what_if = json.loads(fetched(demo.decode.http_address, "/debug/overview"))["what_if"]
        assert "of host memory below the arena." in seen.text("#what-if")
        assert f"+{what_if['slots']} slots would recover {what_if['points']:.1f} points" in (
            seen.text("#what-if")
        )
        drafted, held = (drafts(demo.decode, name) for name in ("drafted", "accepted_draft"))
        assert drafted >= sum(usage.drafted_tokens for usage in demo.usages) > 0
        share = f"{100 * held / drafted:.1f} %"
        seen.page.wait_for_selector(
            f"#drafts:has-text('{drafted:,} tokens by mtp, of which {share}')"
        )
        assert not seen.complaints and not seen.foreign


def test_tree_sessions_and_hand_overs_can_be_clicked_through(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.decode.http_address) as seen:
        wait_live(seen)
        seen.show("tree")
        seen.page.wait_for_selector("#icicle [data-node]")
        nodes = seen.page.locator("#icicle [data-node]")
        assert nodes.count() > demo.decode.stats().tree["nodes"] > 0
        nodes.nth(nodes.count() - 1).click()
        assert "tokens from the start" in seen.text("#tree-node")

        seen.show("sessions")
        seen.page.wait_for_selector("#session-rows [data-request]")
        turns = seen.page.locator("#session-rows [data-request]")
        assert turns.count() == 2 * TURNS
        # Sessions are listed youngest first, and each turn of the demo was followed by the crowd's.
        last = turns.nth(2 * TURNS - 1)
        last.click()
        told = seen.text("#turn")
        hit = demo.usages[TURNS - 1].hit
        assert hit is not None and f"{hit.usable_tokens:,} (" in told
        assert hit.lost is not None and hit.lost.eviction is not None
        taker = hit.lost.eviction.taken_by
        assert taker is not None and f"{taker} took its place" in told
        demo.decode.client.explain(taker)

        # The second turn: only the decode node has the state of the first answer. A third turn may
        # find the tokens pulled by the second.
        request = turns.nth(TURNS + 1).get_attribute("data-request")
        second = demo.usages[1]
        seen.show("handovers")
        seen.page.click(f"#handover-rows tr[data-key='{request}']")
        seen.page.wait_for_selector("#gantt [data-window]")
        transfer = second.transfer
        assert transfer is not None
        # One bar for each layer chunk on each track.
        assert second.pulled is not None, second
        pull = demo.decode.client.explain(request or "").pull
        pulled = len(pull.sender.windows)
        assert pulled > 0 and sum(w.bytes for w in pull.sender.windows) == (second.pulled.bytes)
        record = json.loads(fetched(demo.decode.http_address, f"/debug/requests/{request}"))
        # An early step, if there was time for one, waited for layers.
        waits = len(record["usage"]["transfer"]["timeline"]["receiver"]["waits"])
        windows = {"sender": transfer.windows, "receiver": transfer.windows + waits}
        for track, expected in {**windows, "giver": pulled, "puller": pulled}.items():
            bars = seen.page.locator(f"#gantt [data-track={track}] [data-window]")
            assert bars.count() == expected, track
        phases = seen.page.locator("#gantt [data-track=receiver] [data-phase]").all_text_contents()
        assert {"granted", "ready", "done", "verified"} <= {text.strip() for text in phases}
        phases = seen.page.locator("#gantt [data-track=puller] [data-phase]").all_text_contents()
        assert [text.strip() for text in phases] == ["granted", "done", "verified"]

        seen.show("faults")
        seen.page.wait_for_selector("#fault-rows tbody tr")
        seen.page.wait_for_selector("#fault-counts tbody tr")
        assert "aborted" in seen.text("#fault-counts")
        assert not seen.complaints and not seen.foreign


def test_it_works_by_keyboard_and_in_the_dark(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.decode.http_address, scheme="dark") as seen:
        seen.page.wait_for_selector("[data-total=prompt]")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") != (
            "rgb(255, 255, 255)"
        )
        seen.page.focus("#tab-overview")
        for key in ("ArrowRight", "End", "Home", "ArrowRight", "ArrowRight", "ArrowRight"):
            seen.page.keyboard.press(key)
        assert seen.page.get_attribute("#tab-requests", "aria-selected") == "true"
        seen.page.wait_for_selector("#request-rows tbody tr")
        # The page is as long as with two hundred rows.
        seen.page.set_viewport_size({"width": 1280, "height": 300})
        seen.page.evaluate("document.getElementById('request-rows').style.marginBottom = '5000px'")
        seen.page.focus("#request-rows tbody tr")
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_selector("#request dt:has-text('prompt')")
        assert "prompt" in seen.text("#request")
        box = seen.page.locator("#request").bounding_box()
        assert box is not None and 0 <= box["y"] < 300, "in sight, however many rows are above"
        assert not seen.complaints


def test_a_telephone_shows_every_view_from_its_top_and_whole(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.decode.http_address, path="/#requests") as seen:
        seen.page.set_viewport_size({"width": 390, "height": 700})
        seen.page.reload()
        seen.page.wait_for_selector("#request-rows tbody tr")
        assert seen.page.evaluate("window.scrollY") == 0
        for view in ("overview", "handovers", "faults", "requests"):
            seen.show(view)
            seen.page.wait_for_function("document.body.dataset.ended")
            seen.assert_fits(390)
        shown = seen.page.locator("#request-rows tbody td").first.bounding_box()
        assert shown is not None and shown["height"] < 40, "an id stands in one line"
        assert not seen.complaints


# Tables and tiles with content cut off, or scrolled sideways.
CUT_OFF = """[...document.querySelectorAll(".wide, #figures > div, .story, main > section")]
  .filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.outerHTML.slice(0, 300))"""

# The least contrast of a label with its box in the tree as drawn.
LABEL_CONTRAST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const kinds = ["namespace", "checkpoint", "kv_only", "in_use", "in_transfer", "hidden-nodes"];
  const label = document.querySelector("#icicle text");
  const box = label.parentNode.querySelector("rect");
  return Math.min(...kinds.map((kind) => {
    label.setAttribute("class", `on-${kind}`);
    box.setAttribute("class", `box ${kind}`);
    const [ink, paper] = [label, box].map((one) => light(getComputedStyle(one).fill));
    return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
  }));
})()"""

RIGHTMOST = """Math.max(...[...document.querySelectorAll("#totals td, #pools td, #tiers td")]
  .map((cell) => cell.getBoundingClientRect().right))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2200])
def test_every_view_fits_and_a_chosen_request_is_told_in_sight(
    browser: Browser, demo: Demo, width: int, scheme: str
) -> None:
    with opened(browser, demo.decode.http_address, scheme=scheme) as seen:
        seen.page.set_viewport_size({"width": width, "height": 800})
        seen.page.wait_for_selector("[data-total=prompt]")
        for view in ("overview", "tree", "sessions", "handovers", "faults", "requests"):
            seen.show(view)
            seen.page.wait_for_selector(f"#{view}:not([hidden]) :is(td, rect)")
            seen.assert_fits(width)
            cut = partial(seen.page.evaluate, CUT_OFF)
            until(lambda cut=cut: cut() == [], lambda cut=cut: cut())
            if width in JUDGED:
                assert grave_findings(seen) == [], view
        seen.show("overview")
        until(lambda: seen.page.evaluate(RIGHTMOST) <= width, "a number is cut off")
        seen.show("requests")
        assert "Choose a request" in seen.text("#request")
        seen.page.locator("#request-rows tbody tr").last.click()
        seen.page.wait_for_selector("#request dt:has-text('prompt')")
        told = seen.page.locator("#request").bounding_box()
        assert told is not None and 0 <= told["y"] < 800
        row = seen.page.locator("#request-rows tbody tr").first.bounding_box()
        assert row is not None and (width == 390 or told["x"] > row["x"] + row["width"])
        seen.show("tree")
        seen.page.wait_for_selector("#icicle text")
        assert seen.page.evaluate(LABEL_CONTRAST) >= 4.5
        assert not seen.complaints and not seen.foreign


def test_its_head_says_which_node_this_is_and_how_it_does(browser: Browser, demo: Demo) -> None:
    # The pace covers the last minute; on a busy machine the demo may have run before it.
    demo.usages.append(asked(demo.decode, random_prompt(70, 99), b"", 4).result().usage)
    with opened(browser, demo.decode.http_address) as seen:
        seen.page.wait_for_selector("[data-total=prompt]")
        about = seen.text("#about")
        assert about.startswith("decode, embedded, ") and " up " in about
        assert demo.decode.http_address in about and demo.decode.http_address in seen.page.title()
        titles = seen.page.locator("#figures dt").all_text_contents()
        assert titles == [
            *("Health", "Output", "First token", "Each token after"),
            *("Waiting", "Hit rate", "Memory in use", "Pictures"),
        ]
        figures = partial(seen.text, "#figures")
        assert "ready" in figures() and "cached, of 14." in figures()
        until(lambda: figures().count("p95") == 2, figures)
        until(lambda: "0 running" in figures() and "tok/s" in figures(), figures)
        # The arena's memory equals the value in /metrics, in the page's one unit.
        overview = json.loads(fetched(demo.decode.http_address, "/debug/overview"))
        memory = overview["figures"]["memory"]
        until(lambda: f"{100 * memory['in_use'] / memory['size']:.1f} %" in figures(), figures)
        assert memory["cached"] > 0 and memory["in_use"] < memory["cached"]
        connected = "Prefill nodes: 1 connected."
        until(lambda: connected in seen.text("#peers"), lambda: seen.text("#peers"))
        axes = seen.page.locator(":is(#waterfall, #memory-plot, #output-plot, #ttft-plot) canvas")
        until(lambda: axes.count() == 4, "four pictures have axes")
        seen.page.click("summary")
        assert "free: free" not in seen.text("#pools") and "in_transfer" not in seen.text("#pools")
        # A button shows the causes with a count of zero.
        zero = seen.page.locator("#totals .zero")
        assert zero.count() > 3 and not zero.first.is_visible()
        seen.page.click("#all-causes")
        assert zero.first.is_visible()
        assert seen.page.get_attribute("#all-causes", "aria-expanded") == "true"
        seen.show("faults")
        seen.page.wait_for_selector("#fault-counts tbody tr")
        assert "peers_up" not in seen.text("#fault-counts")
        assert seen.page.locator("#faults h2").count() == 2
        seen.show("handovers")
        seen.page.wait_for_selector("#handover-rows tbody tr")
        heads = seen.page.locator("#handover-rows th").all_text_contents()
        assert {"ended", "took"} <= set(heads)
        assert "Choose a hand-over" in seen.text("#gantt")


def test_a_prefill_node_shows_its_rooms(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.prefill.http_address, "/#requests") as seen:
        seen.page.wait_for_selector("#request-rows tbody tr")
        rows = seen.page.locator("#request-rows tbody tr")
        handed = [usage for usage in demo.usages if usage.transfer is not None]
        assert rows.count() == len(handed) > 0
        assert seen.text("#request-rows").count("handed on") == len(handed)
        assert not seen.complaints and not seen.foreign


def test_a_chosen_row_stays_where_it_is_while_others_come(browser: Browser, demo: Demo) -> None:
    with opened(browser, demo.decode.http_address, "/#requests") as seen:
        rows = seen.page.locator("#request-rows tbody tr")
        seen.page.wait_for_selector("#request-rows tbody tr")
        wait_live(seen)
        name = rows.nth(1).get_attribute("data-key")
        rows.nth(1).click()
        seen.page.wait_for_selector("#request-rows tr[aria-current=true]")
        before, number = rows.nth(1).bounding_box(), rows.count()
        asked(demo.decode, random_prompt(100, 31), b"", 1).result()
        seen.page.wait_for_selector("#newer-requests:has-text('Show 1 newer')")
        assert (rows.nth(1).get_attribute("data-key"), rows.count()) == (name, number)
        assert rows.nth(1).bounding_box() == before
        seen.page.click("#newer-requests")
        until(lambda: rows.count() == number + 1, "the newer one is not shown")
        chosen = seen.page.locator("#request-rows tr[aria-current=true]")
        assert chosen.get_attribute("data-key") == name == rows.nth(2).get_attribute("data-key")
        assert not seen.complaints


def test_what_runs_is_listed_with_its_caller_and_then_with_its_end(
    browser: Browser, demo: Demo
) -> None:
    with opened(browser, demo.decode.http_address, "/#requests") as seen:
        wait_live(seen)
        running = asked(demo.decode, random_prompt(90, 41), b"", 900)
        next(iter(running))
        first = seen.page.locator("#request-rows tbody tr").first
        until(lambda: "in progress" in first.inner_text(), lambda: first.inner_text())
        assert "anybody" in first.inner_text()
        name = first.get_attribute("data-key")
        first.click()
        seen.page.wait_for_selector("#request:has-text('not yet')")
        running.cancel()
        seen.page.wait_for_selector("#request:has-text('abort')")
        row = seen.page.locator(f"#request-rows tr[data-key='{name}']")
        until(lambda: "abort" in row.inner_text(), lambda: row.inner_text())
        assert not seen.complaints


def test_scripts_of_others_are_forbidden(demo: Demo) -> None:
    reply = ask(demo.decode.http_address, "GET", "/")
    assert "default-src 'self'" in reply.headers["Content-Security-Policy"]


def test_the_tree_is_walked_by_arrows_and_keeps_its_place_while_others_are_answered(
    browser: Browser,
    demo: Demo,
) -> None:
    focused = "document.activeElement.dataset.node"
    with opened(browser, demo.decode.http_address, "/#tree") as seen:
        seen.page.wait_for_selector("#icicle [data-node]")
        wait_live(seen)
        # Exactly one box is in the tab order.
        assert seen.page.locator("#icicle [tabindex='0']").count() == 1
        seen.page.focus("#icicle [tabindex='0']")
        path = [seen.page.evaluate(focused)]
        for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
            seen.page.keyboard.press(key)
            path.append(seen.page.evaluate(focused))
        assert path[0] == "top" and path[3] == path[1] and len(set(path)) == 3
        seen.page.keyboard.press("Enter")
        assert path[1] in seen.text("#tree-node")
        ended = int(seen.page.get_attribute("body", "data-ended") or 0)
        names = "[...document.querySelectorAll('#icicle [data-node]')].map(x => x.dataset.node)"
        before = seen.page.evaluate(f"{names}.join()")
        asked(demo.decode, random_prompt(100, 5), b"", 1).result()
        seen.page.wait_for_selector(f"body[data-ended='{ended + 1}']")
        # A full arena keeps its size: the new prompt evicts an older one.
        seen.page.wait_for_function(f"{names}.join() != '{before}'")
        assert seen.page.evaluate(focused) == path[1]
        assert seen.page.get_attribute("#icicle .chosen", "data-node") == path[1]
        assert not seen.complaints
