"""The fleet's page in a real browser: at each width, in both schemes, and before hostile nodes."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from tasuki.dashboard.fleet.fleet import MOST_ROWS, Fleet
from tasuki.dashboard.fleet.samples import WANTED, read_samples
from tasuki.server.auth.callers import LOOPBACK_ONLY
from tests.harness.imagined_fleet import (
    ImaginedNode,
    address_of,
    imagined_nodes,
    lived,
    serving,
)
from tests.harness.pages import Browser, Opened, grave_findings, opened
from tests.harness.waiting import until

JUDGED = (390, 1280)
WIDTHS = {390: 844, 1280: 900, 2200: 1200}
KEY = "a-key-of-this-page"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """Return a fleet after two minutes of traffic."""
    now = time.time()
    return lived(imagined_nodes(4, 8, now), now, 120)


@pytest.fixture(scope="module")
def page(fleet: Fleet) -> Iterator[str]:
    with serving(fleet) as address:
        yield address


def sized(seen: Opened, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": WIDTHS[width]})
    seen.page.wait_for_selector("#node-rows td", state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_fits_and_is_drawn(browser: Browser, page: str, width: int, scheme: str) -> None:
    with opened(browser, page, scheme=scheme) as seen:
        sized(seen, width)
        for view, drawn in (
            ("nodes", "#node-rows tbody tr"),
            ("links", "#matrix tbody td"),
            ("callers", "#caller-rows tbody tr"),
        ):
            seen.show(view)
            seen.page.wait_for_selector(drawn)
            seen.assert_fits(width)
            # The layout follows the drawing a frame later, as the page's width does.
            wide = partial(seen.page.evaluate, TOO_WIDE)
            until(lambda wide=wide: wide() == [], lambda wide=wide: wide())
            if width in JUDGED:
                assert grave_findings(seen) == [], view
        for plot in ("#output-plot", "#ttft-plot"):
            assert seen.page.locator(f"{plot} canvas").count() == 1
        assert seen.page.evaluate(CONTRAST) >= 4.5
        assert not seen.complaints and not seen.foreign


# Words cut off, or outside of their cell or tile.
TOO_WIDE = """[...document.querySelectorAll(
    "#figures > div, .cards td, .bar, .above, .wide:not(:has(#matrix))")]
  .filter((one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.outerHTML)"""

# The least contrast of any small text with the page.
CONTRAST = """(() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map((part) => part / 255)
      .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const paper = light(getComputedStyle(document.body).backgroundColor);
  const texts = [...document.querySelectorAll("small, dt, dd, th, td, a, p")]
    .filter((one) => one.offsetParent);
  return Math.min(...texts.map((one) => light(getComputedStyle(one).color))
    .map((ink) => (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)));
})()"""


def test_the_dead_and_the_slow_come_first_and_lead_to_their_own_pages(
    browser: Browser, page: str
) -> None:
    with opened(browser, page) as seen:
        sized(seen, 1280)
        rows = seen.page.locator("#node-rows tbody tr")
        assert rows.count() == 13
        dead, slow = rows.nth(0).inner_text(), rows.nth(1).inner_text()
        assert "connection refused" in dead and "dead for" in dead
        assert "decode-8" in slow and "1 of 4 links not connected" in slow
        link = rows.nth(1).locator("a")
        assert link.get_attribute("href") == f"http://{address_of(11)}/"
        assert link.get_attribute("rel") == "noopener noreferrer"
        assert "12 of 13" in seen.text("#figures") and "1 dead" in seen.page.title()
        assert "qwen3.5-35b-a3b" in seen.text("#about") and "4 prefill" in seen.text("#about")


def test_the_filter_and_the_order_are_asked_for(browser: Browser, page: str) -> None:
    with opened(browser, page) as seen:
        sized(seen, 1280)
        seen.page.fill("#filter", "prefill ok")
        seen.page.wait_for_selector("#matched:has-text('4 of 13 nodes')")
        assert seen.page.locator("#node-rows tbody tr").count() == 4
        seen.page.fill("#filter", "")
        seen.page.select_option("#sort", "name")
        seen.page.wait_for_selector("#node-rows tbody tr:first-child:has-text('10.0.0.13')")
        seen.page.fill("#filter", "nobody is called so")
        seen.page.wait_for_selector("#matched:has-text('0 of 13 nodes')")
        assert not seen.complaints


def test_a_lost_link_is_marked_in_the_matrix(browser: Browser, page: str) -> None:
    with opened(browser, page, "/#links") as seen:
        seen.page.wait_for_selector("#matrix tbody td")
        assert seen.page.locator("#matrix tbody tr").count() == 4
        assert seen.page.locator("#matrix .lost-link").count() == 1
        assert "1 of them not connected" in seen.text("#link-words")
        assert "MiB/s" in seen.text("#matrix") and "exposed" in seen.text("#matrix")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_tiers_stand_below_the_arena_of_each_node_that_has_them(
    browser: Browser, page: str, width: int, scheme: str
) -> None:
    with opened(browser, page, scheme=scheme) as seen:
        sized(seen, width)
        seen.page.fill("#filter", "prefill-1")
        seen.page.wait_for_selector("#matched:has-text('1 of 13 nodes')")
        bars = seen.page.locator("#node-rows .tier")
        assert bars.all_inner_texts() == ["host", "disk"]
        said = seen.text("#node-rows .sizes")
        assert said.startswith("32.0 GiB arena, 256.0 GiB host") and "1.8 TiB disk" in said
        assert "/s loaded" in said and "/s written" in said
        for bar in seen.page.locator("#node-rows .pools :is(svg, small)").all():
            box = bar.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
        seen.page.fill("#filter", "decode-1")
        seen.page.wait_for_selector("#node-rows a:has-text('decode-1')")
        assert bars.count() == 0
        assert "caches: " in seen.text("#about") and "TiB disk" in seen.text("#about")
        assert not seen.complaints


def test_it_works_by_keyboard_and_keeps_its_place(browser: Browser, page: str) -> None:
    with opened(browser, page) as seen:
        sized(seen, 1280)
        seen.page.focus("#tab-nodes")
        seen.page.keyboard.press("ArrowRight")
        assert seen.page.get_attribute("#tab-links", "aria-selected") == "true"
        seen.page.keyboard.press("ArrowLeft")
        seen.page.wait_for_selector("#node-rows tbody tr")
        focused = "document.activeElement.dataset.key"
        seen.page.focus("#node-rows tbody tr:nth-child(3) a")
        before = seen.page.evaluate(focused)
        at = seen.page.get_attribute("body", "data-at")
        seen.page.wait_for_selector(f"body:not([data-at='{at}'])")
        assert seen.page.evaluate(focused) == before is not None


def test_a_thousand_nodes_are_leafed_through(browser: Browser) -> None:
    fleet = Fleet()
    addresses = [address_of(number) for number in range(1000)]
    fleet.set_members(addresses)
    for address in addresses:
        fleet.failed(address, time.time(), "no answer within 3 s")
    with serving(fleet) as page, opened(browser, page) as seen:
        sized(seen, 390)
        assert seen.page.locator("#node-rows tbody tr").count() <= MOST_ROWS
        first = seen.text("#node-rows tbody tr:first-child a")
        seen.page.click("#after")
        seen.page.wait_for_selector("#matched:has-text('51 to 100 shown')")
        assert seen.text("#node-rows tbody tr:first-child a") != first
        seen.assert_fits(390)
        assert not seen.complaints


def test_words_of_a_node_are_never_markup(browser: Browser) -> None:
    """Show hostile text as text; it may not break the page's layout either."""
    node = ImaginedNode(HOSTILE, HOSTILE, 0.0)
    text = node.text(random.Random(1))
    text += f'tasuki_handover_link_state{{peer="{HOSTILE}",address="a",state="{HOSTILE}"}} 1\n'
    text += 'tasuki_node_start_time_seconds 1e300\ntasuki_requests{state="Waiting"} -5\n'
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80", "10.0.0.2:80"])
    for at in (0.0, 5.0):
        more = f'tasuki_caller_requests_finished_total{{caller="{HOSTILE}"}} {at}\n'
        more += f'tasuki_prefill_choices_total{{reason="{HOSTILE}"}} {at}\n'
        fleet.answered("10.0.0.1:80", time.time(), at, read_samples(text + more, WANTED))
    with serving(fleet) as page, opened(browser, page) as seen:
        sized(seen, 390)
        assert seen.text("#node-rows").count(HOSTILE) >= 3, "its name, its role and its reason"
        for view, place in (
            ("nodes", "node-rows"),
            ("links", "matrix"),
            ("callers", "caller-rows"),
        ):
            seen.show(view)
            seen.page.wait_for_selector(f"#{place} tbody tr")
            assert HOSTILE in seen.text(f"#{place}")
            for width in (1280, 390):
                sized(seen, width)
                seen.assert_fits(width)
        assert seen.page.locator("img, main script").count() == 0
        assert not seen.complaints and not seen.foreign


def test_a_page_with_a_key_asks_for_it_and_shows_it_never(browser: Browser, fleet: Fleet) -> None:
    with serving(fleet, replace(LOOPBACK_ONLY, api_key=KEY)) as page, opened(browser, page) as seen:
        seen.page.wait_for_selector("#key:not([hidden])")
        assert seen.page.locator("#node-rows td").count() == 0
        seen.page.fill("#key input", KEY)
        seen.page.click("#key button")
        seen.page.wait_for_selector("#node-rows td")
        assert KEY not in seen.page.content() and KEY not in seen.page.url
