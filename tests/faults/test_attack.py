"""Two minutes of the attacks of `python -m scripts.attack`, and a check that it reports a
finding."""

import random
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import grpc
import pytest

from scripts.attack.catalogue import ATTACKS
from scripts.attack.drawing import examples, messages, odd_json
from scripts.attack.grpc_call import judge as judge_grpc
from scripts.attack.grpc_call import methods
from scripts.attack.http_call import HttpCall, ask
from scripts.attack.pictures.rows import of_addresses
from scripts.attack.pictures.seeing_node import seeing_node
from scripts.attack.tally import Tally
from scripts.attack.world import BOB
from scripts.chaos.attack import Row, campaign, table
from tasuki.proto import inference_pb2
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import needs_nixl


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_nixl
def test_two_minutes_of_attacks_find_nothing() -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"attack: seed {seed}")
    rows = campaign(ATTACKS, 100.0, seed, say=print)
    print(table(rows))
    assert [row.attack for row in rows] == [attack.name for attack in ATTACKS]
    assert all(row.tries for row in rows), "an attack that tries nothing finds nothing"
    findings = [f"{row.attack}: {finding}" for row in rows for finding in row.findings]
    assert not findings, f"seed {seed}: {findings}"


def test_a_crash_told_as_an_answer_and_a_silence_are_findings() -> None:
    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(500 if self.path == "/broken" else 404)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Broken)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        tally = Tally()
        address = f"127.0.0.1:{server.server_port}"
        assert ask(address, HttpCall("GET", "/right"), tally) == 404
        assert not tally.findings
        assert ask(address, HttpCall("GET", "/broken"), tally) == 500
        assert len(tally.findings) == 1 and tally.tries == 2
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    tally = Tally()
    for code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED):
        judge_grpc(code, "", "refused", tally)
    assert not tally.findings
    for code in (
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    ):
        judge_grpc(code, "", code.name, tally)
    assert len(tally.findings) == 3


def test_a_row_says_what_was_tried_and_what_came_of_it() -> None:
    tally = Tally()
    for outcome in ("401", "401", "200"):
        tally.note(outcome)
    tally.finding("200 of /metrics")
    tally.finding("200 of /metrics")
    rows = [Row("forged keys", tally.tries, tally.summary, tuple(tally.findings))]
    assert table(rows).splitlines()[-1] == "| forged keys | 3 | 2 401, 1 200 | 1 findings |"
    assert Row("", 1, "", ()).verdict == "held"


def test_what_is_drawn_is_its_seeds_and_no_two_draws_alike() -> None:
    def drawn(seed: int) -> list[object]:
        rng = random.Random(seed)
        values: list[object] = [repr(value) for value in examples(odd_json, rng, 30)]
        for method in methods(inference_pb2):
            values += [
                message.SerializeToString(deterministic=True)
                for message in examples(messages(method.request.DESCRIPTOR), rng, 10)
            ]
        return values

    assert drawn(1) == drawn(1) != drawn(2)
    assert len({repr(value) for value in drawn(1)}) > 60


@needs_goldens
def test_wrong_replies_and_calls_of_a_local_server_are_findings() -> None:
    """The attacks with pictures, in short: right rows find nothing, and wrong ones do."""
    tally = Tally()
    with TemporaryDirectory() as folder, seeing_node(Path(folder), tally) as node:
        assert node is not None
        right = [*of_addresses(1)][:3]
        for row in right:
            node.send(row)
        assert not tally.findings and tally.tries == len(right)
        node.send(replace(right[0], expected=((200, ""),)))
        assert "picture_not_fetched" in tally.findings[0]
        reply = node.ask("/v1/chat/completions", node.new_picture(), BOB)
        assert reply.status == 200, reply.body
        assert node.workers()
    assert len(tally.findings) == 1
