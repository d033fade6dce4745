"""Tests of `tasuki dashboard` over real nodes: their counters, dead nodes, keys, etcd and
access."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.api_keys import headers, keys_file
from tests.harness.daemons import asked, random_prompt
from tests.harness.etcd_process import running_etcd
from tests.harness.fleet_process import nodes_of, watching
from tests.harness.http_calls import ask
from tests.harness.programs import error_line, exit_status
from tests.harness.running_nodes import HTTP, fused_node, node_pair
from tests.harness.waiting import until

KEY = "a-key-for-metrics-alone"
PAGE_KEY = "a-key-for-the-page"
PROMPTS = 3


def key_file(folder: Path, name: str, key: str) -> str:
    path = folder / name
    path.write_text(f"{key}\n")
    return str(path)


def test_real_nodes_are_shown_with_what_they_count() -> None:
    with node_pair(*HTTP) as (prefill, decode):
        listed = f"{prefill.http_address},{decode.http_address},127.0.0.1:1"
        with watching("--nodes", listed) as page:
            nodes_of(page, lambda rows: [row["level"] for row in rows] == ["dead", "fine", "fine"])
            for number in range(PROMPTS):
                asked(decode, random_prompt(200, number), b"", 4).result()
            # A busy machine may starve a node until it seems silent, so wait until all is well.
            _, taker, sender = nodes_of(
                page,
                lambda rows: (
                    (rows[1]["hit"] or {}).get("prompt") == 200 * PROMPTS
                    and [row["level"] for row in rows] == ["dead", "fine", "fine"]
                ),
            )
            assert (taker["role"], sender["role"]) == ("decode", "prefill")
            assert taker["model"] == "embedded" and taker["started_at"] and taker["ttft"]["p50"] > 0
            assert sum(taker["routing"]["reasons"].values()) == PROMPTS
            links = ask(page, "GET", "/fleet/links").json
            (cell,) = links["cells"]
            assert (cell["row"], cell["column"]) == ("prefill", decode.http_address)
            assert cell["state"] == "connected" and cell["bytes_rate"] > 0
            callers = ask(page, "GET", "/fleet/callers").json
            assert [row["caller"] for row in callers["rows"]] == ["anybody"]
            assert callers["rows"][0]["answered"] == PROMPTS
            levels = {"dead": 1, "fine": 2}

            def summed() -> bool:
                totals = ask(page, "GET", "/fleet/summary").json["totals"]
                return bool(totals["levels"] == levels)

            until(summed, "the sums show other levels")
            dead = nodes_of(page, bool)[0]
            assert dead["trouble"][0]["text"] == "connection refused"


def test_a_node_s_key_is_used_and_the_page_has_one_of_its_own(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, f"ann ann-s-key caller\nprobe {KEY} metrics\n")
    borne = key_file(tmp_path, "borne", KEY)
    own = key_file(tmp_path, "own", PAGE_KEY)
    with fused_node(*HTTP, "--api-keys", keys) as node:
        flags = ("--nodes", node.http_address)
        with watching(*flags) as page:
            (row,) = nodes_of(page, lambda rows: rows[0]["level"] == "dead")
            assert row["trouble"][0]["text"] == "it wants a key: give --api-key-file"
        with watching(*flags, "--api-key-file", borne, "--page-key-file", own) as page:
            assert ask(page, "GET", "/").status == 200
            for path in ("nodes", "links", "callers", "summary"):
                assert ask(page, "GET", f"/fleet/{path}").status == 401, path
                assert ask(page, "GET", f"/fleet/{path}", headers=headers(KEY)).status == 401, path

            def shown() -> bool:
                reply = ask(page, "GET", "/fleet/nodes", headers=headers(PAGE_KEY))
                assert KEY.encode() not in reply.body and PAGE_KEY.encode() not in reply.body
                return bool(reply.json["rows"][0]["role"] == "fused")

            until(shown, "the node is not shown")


def test_it_serves_its_own_names_and_its_own_paths() -> None:
    with watching("--nodes", "127.0.0.1:1") as page:
        assert ask(page, "GET", "/fleet/nodes", headers={"Host": "evil.example"}).status == 421
        assert ask(page, "GET", "/", headers={"Host": "evil.example"}).status == 421
        reply = ask(page, "GET", "/")
        assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/metrics", "/fleet", "/fleet/nodes/127.0.0.1:1", "/page/../main.py"):
            assert ask(page, "GET", path).status == 404, path
        for path in ("sort=x", "offset=-1", "count=101", "count=1e9", "offset=" + "9" * 40):
            assert ask(page, "GET", f"/fleet/nodes?{path}").status == 400, path
        assert ask(page, "POST", "/fleet/nodes").status == 405


def test_nodes_come_from_etcd_and_go_with_their_lease(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd, watching("--etcd", etcd.url) as page:
        assert nodes_of(page, lambda rows: not rows) == []
        with fused_node(*HTTP, "--http-etcd", etcd.url) as node:
            (row,) = nodes_of(page, lambda rows: [row["level"] for row in rows] == ["fine"])
            assert row["address"] == node.http_address and row["name"] == "serve"
        nodes_of(page, lambda rows: not rows)


@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ((), "give one of --nodes, --nodes-file and --etcd"),
        (("--nodes", " ,,"), "names no node: give HOST:PORT"),
        (
            ("--nodes", "a:1", "--etcd", "http://a:2"),
            "give one of --nodes, --nodes-file and --etcd",
        ),
        (("--nodes", "a:1/b"), "is not HOST:PORT"),
        (("--nodes", "a:1", "--every-seconds", "0"), "every_seconds must be over 0"),
        (("--nodes", "a:1", "--answer-mib", "0"), "answer_mib must be in [1, 64]"),
        (("--nodes", "a:1", "--api-key-file", "/nowhere"), "api_key_file /nowhere cannot be read"),
        (("--nodes", "a:1", "--ca", "/nowhere"), "ca /nowhere cannot be used"),
        (("--nodes-file", "/nowhere"), "/nowhere cannot be read"),
        (("--nodes", "a:1", "--host", "0.0.0.0"), "is not a loopback address"),
        (("--nodes", "a:1", "--host", "0.0.0.0", "--insecure"), "this server identifies no caller"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    flags: tuple[str, ...], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(["dashboard", "--port", "0", *flags]) in (1, 2)
    assert wanted in error_line(capsys)


def test_its_process_has_no_engine() -> None:
    program = "import sys, tasuki.cli.fleet.main; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "torch" not in loaded and "nixl" not in loaded
    assert not [
        name for name in loaded if name.startswith("tasuki.engine.") and "messages" not in name
    ]
