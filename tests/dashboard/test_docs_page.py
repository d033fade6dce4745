"""Tests of the page of /openapi.json in a real browser: it lists every operation and contacts no
other host."""

from tests.harness.http_fixtures import running_http
from tests.harness.pages import Browser, opened


def test_the_page_lists_operations_and_their_fields(browser: Browser) -> None:
    with running_http() as node:
        described = node.ask("GET", "/openapi.json").json
        with opened(browser, node.server.address, "/docs") as seen:
            seen.page.wait_for_selector("details")
            count = sum(len(methods) for methods in described["paths"].values())
            assert seen.page.locator("details").count() == count
            seen.page.click("summary:has-text('Answer a message')")
            text = seen.text("details[open]")
            assert "max_tokens" in text and "required" in text and "text/event-stream" in text
            seen.assert_fits(1280)
            assert seen.complaints == [] and seen.foreign == []
