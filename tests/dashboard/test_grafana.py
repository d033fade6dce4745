"""Grafana's boards: written by code, and every query of them has data on a running pair."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasuki.client.answer import AnswerStream
from tasuki.client.errors import ClientError
from tests.harness.daemons import Node, asked, flags, random_prompt, resting_at
from tests.harness.picture_answers import CASES, chat, messages_of
from tests.harness.picture_answers import FOLDER as VISION
from tests.harness.programs import output_of, program
from tests.harness.prometheus_process import Prometheus, scraping
from tests.harness.running_nodes import CHUNKS, HTTP, node_pair, running
from tests.harness.waiting import until

pytest.importorskip(
    "grafana_foundation_sdk", reason="Grafana's SDK is not there: see the dev group"
)

from scripts.grafana.boards import BOARDS
from scripts.grafana.render import render
from scripts.grafana.tiles import TILES

FOLDER = Path(__file__).parents[2] / "docs" / "grafana"
HAS_TOWER = VISION.is_dir()
"""Without the goldens no node here sees pictures."""
QUERIES = [
    query.expr
    for board in BOARDS
    if HAS_TOWER or board.name != "pictures"
    for panel in board.panels
    for query in panel.queries
]


def ask(node: Node, length: int, new_tokens: int = 4) -> AnswerStream:
    return asked(node, random_prompt(length, new_tokens), b"", new_tokens)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield Prometheus over a pair after each event shown by the boards happened once. One request
    still runs."""
    with ExitStack() as stack:
        disk = ("--disk-cache", str(tmp_path_factory.mktemp("disk")), "--disk-cache-gib", "0.05")
        pair = node_pair(
            *(*CHUNKS, *HTTP),
            prefill=("--host-cache-gib", "0.05", *disk, "--disk-write-budget", "50"),
            decode=("--speculate", "mtp", "--draft-count", "most"),
            environment=resting_at(1),
        )
        prefill, decode = stack.enter_context(pair)
        targets = [decode.http_address, prefill.http_address]
        seeing = flags(VISION, arena_mib=16)
        if HAS_TOWER:
            fused = stack.enter_context(running(Node("serve", *seeing, *HTTP)))
            targets.append(fused.http_address)
        folder = tmp_path_factory.mktemp("prometheus")
        server = stack.enter_context(scraping(targets, folder))
        until(lambda: len(server.query("tasuki_cache_integrity == 1")) == len(targets), "no scrape")
        for length in (300, 90):
            ask(decode, length).result()
        if HAS_TOWER:
            assert chat(fused, messages_of(CASES["middle"])).status == 200
        with pytest.raises(ClientError):
            ask(decode, 90, new_tokens=10_000_000).result()
        left = ask(decode, 1500)
        until(lambda: decode.requests("Receiving") > 0, decode.story)
        left.cancel()
        decode.assert_at_rest()
        decode.client.flush()
        unended = ask(decode, 70, new_tokens=3000)
        stack.callback(unended.cancel)
        next(iter(unended))
        yield server


def numbers(server: Prometheus, expr: str) -> list[float]:
    # The range covers the whole test, since its duration depends on the machine.
    asked = expr.replace("$node", ".+").replace("$rate", "10m")
    values = [float(sample["value"][1]) for sample in server.query(asked)]
    return [value for value in values if not math.isnan(value)]


def test_every_query_of_every_board_returns_data(watched: Prometheus) -> None:
    def silent() -> list[str]:
        return [expr for expr in QUERIES if not numbers(watched, expr)]

    until(lambda: not silent(), silent)
    assert len(QUERIES) > 50


def test_the_files_are_what_the_code_builds() -> None:
    for board in BOARDS:
        written = (FOLDER / f"{board.name}.json").read_text()
        assert written == render(board), "run python -m scripts.grafana"


def test_every_metric_of_a_board_or_an_alert_is_in_the_reference() -> None:
    page = (FOLDER.parent / "metrics.md").read_text()
    told = set(re.findall(r"`(tasuki_\w+)`", page))
    text = "".join(QUERIES) + (FOLDER / "alerts.yml").read_text()
    asked = set(re.findall(r"tasuki_\w+", text))
    parts = re.compile(r"_(bucket|sum|count)$")
    assert {parts.sub("", name) for name in asked} - told == set()


def alert_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_alert_is_tested_both_ways() -> None:
    rules = alert_rules()
    cases = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    names = {rule["alert"] for rule in rules}
    assert len(names) == len(rules) > 20
    for fires in (True, False):
        tried = {check["alertname"] for check in checks if bool(check["exp_alerts"]) is fires}
        assert tried == names
    for rule in rules:
        assert {*rule["annotations"]} == {"summary", "mend"}


# The watched pair has no TLS, so it lacks this series.
_ELSEWHERE = "tasuki_certificate_not_after_seconds"


def test_every_series_that_an_alert_names_is_there_before_it_fires(watched: Prometheus) -> None:
    """Find every series of an alert before the alert fires. A counter created by its first event
    shows no increase for it. A label value missing on every node would never fire."""
    text = " ".join(rule["expr"] for rule in alert_rules())
    named = {*re.findall(r"tasuki_\w+(?:\{[^}]*\})?", text)}
    asked = {name for name in named if not name.startswith(_ELSEWHERE)}
    # These exist only if callers name targets.
    asked = {name for name in asked if not name.startswith("tasuki_target")}
    missing = [name for name in asked if not numbers(watched, f"count({name})")]
    assert not missing and len(asked) > 25
    kinds = re.search(r'kind=~"([^"]*)"', text)
    assert kinds is not None
    for kind in kinds[1].split("|"):
        assert numbers(watched, f'tasuki_calls_failed_total{{kind="{kind}"}}'), kind


def test_the_first_board_begins_with_tiles() -> None:
    (board,) = [board for board in BOARDS if board.name == "overview"]
    panels = json.loads((FOLDER / "overview.json").read_text())["panels"]
    kinds = [panel["type"] for panel in panels]
    assert kinds[: len(TILES)] == ["stat"] * len(TILES) and "stat" not in kinds[len(TILES) :]
    assert [panel["title"] for panel in panels] == [panel.title for panel in board.panels]
    for panel in panels[: len(TILES)]:
        steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert steps[0]["value"] is None and panel["gridPos"]["y"] < 10
        bounds = [step["value"] for step in steps[1:]]
        assert bounds == sorted(bounds)


def test_alerts_fire_and_keep_quiet() -> None:
    promtool = program("promtool", "install Debian's prometheus")
    for action, file in (("check", "alerts.yml"), ("test", "alerts_test.yml")):
        output_of([promtool, action, "rules", file], cwd=FOLDER)
