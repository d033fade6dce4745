"""`tasuki conformance --dictated` against a node that says what it is asked for, and against one
that reads no calls."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from scripts.conformance import node as saying
from tasuki.cli.conformance import main
from tasuki.cli.conformance.check import Caller
from tasuki.cli.conformance.endpoint import Endpoint, Reply, open_endpoint
from tasuki.cli.conformance.outcome import Outcome, Row
from tests.harness.daemons import Node
from tests.harness.damaged_endpoint import DamagedEndpoint, said
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.programs import exit_status
from tests.harness.running_nodes import HTTP, running
from tests.harness.tool_caller import tool_caller

WITH_CALLS = ("chats", "messages", "responses")
TORN_NAME = "a name that is cut off is text"
NO_STOPS = "a stop string in a call does not count"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tool_caller(tmp_path_factory.mktemp("saying") / "model", "qwen3_8")
    launch = partial(ForkedDaemon, main=saying.main)
    with running(Node("serve", "--model", str(folder), *HTTP, launch=launch)) as started:
        yield started


def test_a_node_reads_calls_as_its_rules_say(
    node: Node, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.json"
    url = f"http://{node.http_address}"
    status = exit_status(["conformance", url, "--dictated", "--json", str(file)])
    shown = capsys.readouterr().out
    assert status == 0, shown
    rows = json.loads(file.read_text())["rows"]
    apis = [main.APIS[name] for name in WITH_CALLS]
    assert len(rows) == sum(len(main.dictated_checks_of(api)) for api in apis)
    others = [(row["api"], row["check"]) for row in rows if row["outcome"] != "passed"]
    assert others == [("responses", NO_STOPS)], shown


class WithoutTools(Endpoint):
    """A server that reads no calls: it is asked without tools."""

    async def _ask(self, method: str, path: str, body: bytes | None) -> Reply:
        asked = json.loads(body or b"{}")
        asked.pop("tools", None)
        return await super()._ask(method, path, json.dumps(asked).encode())


@pytest.mark.parametrize("name", WITH_CALLS)
def test_each_check_fails_at_a_server_that_reads_no_calls(node: Node, name: str) -> None:
    async def rows() -> list[Row]:
        async with open_endpoint(f"http://{node.http_address}") as whole:
            api = main.APIS[name]
            caller = Caller(WithoutTools(whole.url, whole.seconds, whole.session), api, "model")
            return [await check.row(name, caller) for check in main.dictated_checks_of(api)]

    passed = {row.check for row in asyncio.run(rows()) if row.outcome is not Outcome.FAILED}
    assert passed == ({TORN_NAME, NO_STOPS} if name == "responses" else {TORN_NAME})


def test_a_torn_name_that_is_lost_is_found(node: Node) -> None:
    async def row() -> Row:
        async with open_endpoint(f"http://{node.http_address}") as whole:
            damage = said("content", "x")
            damaged = DamagedEndpoint(whole.url, whole.seconds, whole.session, damage)
            api = main.APIS["chats"]
            (torn,) = [check for check in main.dictated_checks_of(api) if check.name == TORN_NAME]
            return await torn.row("chats", Caller(damaged, api, "model"))

    assert asyncio.run(row()).outcome is Outcome.FAILED
