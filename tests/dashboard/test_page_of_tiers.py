"""Tests of a node's page with cache tiers below its arena, in a real browser. The bytes of each
tier equal its counters, at each width and in both colour schemes."""

from collections.abc import Iterator

import pytest

from tests.harness.daemons import Node, asked, random_prompt
from tests.harness.metrics_text import scraped
from tests.harness.pages import Browser, Opened, opened
from tests.harness.running_nodes import HTTP, fused_node
from tests.harness.waiting import until

TIERED = (*HTTP, "--host-cache-gib", "0.06")
RIGHTMOST = """Math.max(...[...document.querySelectorAll("#tiers td")]
  .map((cell) => cell.getBoundingClientRect().right))"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield a node after more prompts than its arena can hold."""
    folder = str(tmp_path_factory.mktemp("disk"))
    disk = ("--disk-cache", folder, "--disk-cache-gib", "0.1", "--disk-write-budget", "60")
    with fused_node(*TIERED, *disk, arena_mib=15) as node:
        for seed in range(6):
            asked(node, random_prompt(400, seed), b"", 2).result()
        until(lambda: is_kept(node), "nothing is kept, or never all of it")
        yield node


def is_kept(node: Node) -> bool:
    """Return true if some writes are done and none is moving or waiting."""
    moving = (
        counted(node, "tasuki_tier_moving", f"what={what}") for what in ("writes", "waiting_writes")
    )
    return not any(moving) and counted(node, "tasuki_tier_writes_total", "end=done") > 0


def counted(node: Node, name: str, label: str) -> int:
    """Return the value of the host tier's metric with this name and label."""
    (found,) = [
        value
        for key, value in scraped(node.http_address).items()
        if key.startswith(f"{name}{{") and label in key and "tier=host" in key
    ]
    return int(found)


def shown(seen: Opened, tier: str, column: int) -> int:
    return seen.number(f"#tiers [data-tier={tier}] td:nth-child({column})")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 2200])
def test_a_node_shows_its_arena_and_tiers_in_bytes(
    browser: Browser, node: Node, width: int, scheme: str
) -> None:
    with opened(browser, node.http_address, scheme=scheme) as seen:
        seen.page.set_viewport_size({"width": width, "height": 800})
        found = scraped(node.http_address)
        slab = int(found["tasuki_cache_slab_bytes"])
        arena = sum(found[f"tasuki_cache_slabs{{use={use}}}"] for use in ("free", "pages", "slots"))
        free, total = (
            counted(node, "tasuki_tier_slabs", f"use={use}") for use in ("free", "total")
        )
        written = counted(node, "tasuki_tier_bytes_total", "direction=written")
        seen.page.wait_for_selector(f"#tiers [data-tier=host] td[data-value='{written}']")
        assert shown(seen, "arena", 4) == arena * slab >= shown(seen, "arena", 3) > 0
        assert shown(seen, "host", 3) == (total - free) * slab > 0
        assert shown(seen, "host", 4) == total * slab <= 0.06 * 2**30
        assert "states of use" in seen.text("#tiers")
        assert "may be written now" in seen.text("#tiers")
        # A page's bytes are whole.
        gained = found["tasuki_tier_budget_bytes{tier=disk,what=a_second}"]
        assert 59e6 < gained <= 60e6
        seen.assert_fits(width)
        until(lambda: seen.page.evaluate(RIGHTMOST) <= width, "a number is cut off")
        assert not seen.complaints


def test_a_node_without_tiers_shows_its_arena_alone(browser: Browser) -> None:
    with fused_node(*HTTP) as node, opened(browser, node.http_address) as seen:
        seen.page.wait_for_selector("#tiers [data-tier=arena]")
        assert seen.page.locator("#tiers [data-tier]").count() == 1
        assert not seen.complaints
