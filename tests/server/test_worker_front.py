"""Tests of a front worker: its services, its needs, and its settings."""

import asyncio
import itertools
import re
import subprocess
import sys
from typing import Any

import grpc
import pytest

from tasuki.engine import messages as m
from tasuki.server.auth.callers import LOOPBACK_ONLY
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.auth.surfaces import GRPC, HTTP
from tasuki.server.bind import BindError, PortClaim
from tasuki.server.config import ServerConfig
from tasuki.server.drain import Rotation
from tasuki.server.http.server import Probes
from tasuki.server.openapi.document import ApiDescription
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.workers.worker import OWN_METHODS, HttpForwarding
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_calls import ask
from tests.harness.http_fixtures import running_http
from tests.harness.refusals import refusal


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"front_workers": 0}, "front_workers must be in"),
        ({"front_workers": 65}, "front_workers must be in"),
        ({"front_workers": 2, "engine_process": "thread"}, "leave engine_process out"),
    ],
)
def test_settings_that_no_node_could_have_are_named(
    settings: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        ServerConfig(**settings)


def test_several_fronts_need_an_engine_of_its_own() -> None:
    assert ServerConfig(front_workers=2).engine_apart("cpu")
    assert not ServerConfig().engine_apart("cpu")


def test_a_worker_starts_without_torch() -> None:
    script = "import sys, tasuki.server.workers.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_every_surface_is_a_worker_s_own_or_handed_on() -> None:
    async def handed_on() -> set[str]:
        forwarding = HttpForwarding("/nowhere", HeldBytes.for_messages(1024))
        try:
            # Drop the pattern of each name.
            return {re.sub(r"\{name:.+\}", "{name}", r.path) for r in forwarding.routes()}
        finally:
            await forwarding.close()

    # The page of many nodes is not a node's route.
    asked = {path for _, path in HTTP if "{path}" not in path and not path.startswith("/fleet/")}
    each = [*Probes(lambda: None, Rotation()).routes(), *ApiDescription().routes()]
    probes = {route.path for route in each}
    own = {path for path in asked if path.startswith(("/v1/", "/token", "/detokenize"))}
    forwarded = asyncio.run(handed_on())
    assert forwarded - own == asked - own - probes
    stored = "/v1/responses/{name}"
    assert forwarded & own == {stored, f"{stored}/input_items", f"{stored}/cancel"}
    assert set(GRPC) >= OWN_METHODS


def test_a_call_that_is_handed_on_is_refused_as_the_node_refuses_it() -> None:
    with running_front(workers=2) as front:
        refused = refusal(front.calls.explain, "never")
        assert refused.typed == (grpc.StatusCode.NOT_FOUND, "unknown_request")
        refused = refusal(front.calls.turn, "no session")
        assert refused.typed == (grpc.StatusCode.NOT_FOUND, "unknown_session")


def test_a_port_is_shared_by_one_node_s_processes_alone() -> None:
    claim = PortClaim("bind", "127.0.0.1:0", LOOPBACK_ONLY)
    try:
        with pytest.raises(BindError, match=f"bind {claim.address} failed: is the port taken"):
            PortClaim("bind", claim.address, LOOPBACK_ONLY)
    finally:
        claim.close()
    PortClaim("bind", claim.address, LOOPBACK_ONLY).close()


def test_http_is_handed_on_with_its_status_and_id() -> None:
    config = ServerConfig(http_bind="127.0.0.1:0")
    with running_front(config=config, workers=2) as front:
        assert front.http is not None
        reply = ask(
            front.http.address, "GET", "/v1/responses/none", headers={"x-request-id": "mine"}
        )
        assert reply.refusal == (404, "response_not_found")
        assert reply.headers["x-request-id"] == "mine"
        assert ask(front.http.address, "HEAD", "/v1/responses/none").status == 404
        cancel = ask(front.http.address, "POST", "/v1/responses/none/cancel")
        assert cancel.refusal == (404, "response_not_found")
        # A single front reports the same: the path is not served, by any method.
        resume = ask(front.http.address, "POST", "/v1/responses/none/resume")
        assert resume.refusal == (404, "not_found")


def test_a_stored_response_is_gone_on_from_at_any_worker(codec: TextCodec) -> None:
    with running_http(codec, workers=3) as http:
        name = ""
        for turn in range(6):
            body = {"input": f"it was {turn}", "previous_response_id": name or None}
            reply = http.post("/v1/responses", body)
            assert reply.status == 200, reply.body
            name = reply.json["id"]
            assert http.ask("GET", f"/v1/responses/{name}").json["id"] == name
        submits = http.engine.of(m.Submit)
        for before, after in itertools.pairwise(submits):
            assert after.prompt[: len(before.prompt)].tolist() == before.prompt.tolist()
        assert http.ask("DELETE", f"/v1/responses/{name}").status == 200
        assert http.ask("GET", f"/v1/responses/{name}").status == 404
