"""Tests of a request's owner and urgency, as the engine gets them from every surface."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tasuki.client.prompt import ClientRequests, Prompt
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.grpc.generate_messages import read_targets
from tests.harness.api_keys import headers, keys_file
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.waiting import HANG_SECONDS

KEYS = "ann ann-key\nben ben-key\ngate gate-key gateway,caller\n"


@pytest.fixture
def http(tmp_path: Path) -> Iterator[HttpFront]:
    with running_http(config=ServerConfig(api_keys=keys_file(tmp_path, KEYS))) as front:
        yield front


def submitted(http: HttpFront) -> m.Submit:
    (submit,) = http.engine.of(m.Submit)
    http.engine.received.clear()
    return submit


def test_a_caller_is_known_by_its_key_and_a_gateway_s_by_the_tenant_it_names(
    http: HttpFront,
) -> None:
    list(http.front.bearing("ann-key").generate(5))
    assert submitted(http).caller == "ann"
    http.complete(headers("ben-key"), prompt=[5])
    assert submitted(http).caller == "ben"
    list(http.front.bearing("gate-key", ("x-tasuki-tenant", "cho")).generate(5))
    assert submitted(http).caller == "cho"


def test_a_priority_reaches_the_engine_from_every_surface(http: HttpFront) -> None:
    ann = http.front.bearing("ann-key")
    list(ann.generate(5, priority=-7))
    assert submitted(http).priority == -7
    turns = ann.open()
    ann.append(turns, 5)
    list(ann.turn(turns, priority=3))
    assert submitted(http).priority == 3
    http.complete(headers("ann-key"), prompt=[5], priority=2**31 - 1)
    assert submitted(http).priority == 2**31 - 1
    http.complete(headers("ann-key"), prompt=[5])
    assert submitted(http).priority == 0


HEADERS = ("x-slo-ttft-ms", "x-slo-tpot-ms", "x-slo-e2e-ms")


def test_targets_reach_the_engine_from_every_surface(http: HttpFront) -> None:
    named = tuple(zip(HEADERS, ("1500", "20", "60000"), strict=True))
    wanted = m.Targets(1.5, 0.02, 60)
    slow = http.front.bearing("ann-key", *named)
    list(slow.generate(5))
    assert submitted(http).targets == wanted
    turns = slow.open()
    slow.append(turns, 5)
    list(slow.turn(turns))
    assert submitted(http).targets == wanted
    http.complete(headers("ann-key") | dict(named), prompt=[5])
    assert submitted(http).targets == wanted
    http.complete(headers("ann-key") | {"x-slo-ttft-ms": "250"}, prompt=[5])
    assert submitted(http).targets == m.Targets(0.25)
    http.complete(headers("ann-key"), prompt=[5])
    assert submitted(http).targets == m.NO_TARGETS


def test_the_field_of_a_call_comes_before_its_metadata(http: HttpFront) -> None:
    ann = http.front.bearing("ann-key", ("x-slo-ttft-ms", "1500"), ("x-slo-tpot-ms", "20"))
    list(ann.generate(5, targets=pb.Targets(first_token_seconds=0.5, answer_seconds=9)))
    assert submitted(http).targets == m.Targets(0.5, 0.02, 9)
    turns = ann.open()
    ann.append(turns, 5)
    list(ann.turn(turns, targets=pb.Targets(per_token_seconds=0.1)))
    assert submitted(http).targets == m.Targets(1.5, 0.1)


@pytest.mark.parametrize("name", HEADERS)
@pytest.mark.parametrize("target", ["0", "-1", "nan", "inf", "1e999", "soon", "", "1 2"])
def test_a_target_that_is_no_time_is_refused(http: HttpFront, name: str, target: str) -> None:
    reply = http.complete(headers("ann-key") | {name: target}, prompt=[5])
    assert reply.status == 400 and name in str(reply.body)
    assert not http.engine.of(m.Submit)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_a_call_s_target_that_is_no_time_is_refused(http: HttpFront, seconds: float) -> None:
    with pytest.raises(grpc.RpcError, match=r"targets\.per_token_seconds"):
        targets = pb.Targets(per_token_seconds=seconds)
        list(http.front.bearing("ann-key").generate(5, targets=targets))
    assert not http.engine.of(m.Submit)


class SeenRequest(ClientRequests[pb.GenerateRequest]):
    """Client requests with the request itself as the answer."""

    def _ask(self, request: pb.GenerateRequest, choices: int) -> pb.GenerateRequest:
        return request


def test_the_clients_targets_are_those_of_the_call() -> None:
    request = SeenRequest().generate(Prompt(token_ids=[1]), targets=m.Targets(0.5, answer=9))
    assert read_targets(request.targets) == m.Targets(0.5, None, 9)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.5, "high", True])
def test_a_priority_that_is_no_small_integer_is_refused(http: HttpFront, priority: object) -> None:
    reply = http.complete(headers("ann-key"), prompt=[5], priority=priority)
    assert reply.status == 400 and "priority" in str(reply.body)
    assert not http.engine.of(m.Submit)


def test_a_call_s_deadline_is_its_client_s_patience(http: HttpFront) -> None:
    list(http.front.bearing("ann-key").generate(5))
    # gRPC rounds a deadline up, by a hundredth at most.
    assert HANG_SECONDS - 30 < submitted(http).patience <= 1.01 * HANG_SECONDS
    http.complete(headers("ann-key"), prompt=[5])
    assert submitted(http).patience == float("inf")
