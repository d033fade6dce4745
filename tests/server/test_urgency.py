"""Whose a request is and how urgent, as the engine gets it from every surface."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasuki.engine import messages as m
from tasuki.server.config import ServerConfig
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


def test_a_target_for_the_first_token_reaches_the_engine_from_every_surface(
    http: HttpFront,
) -> None:
    name = "x-slo-ttft-ms"
    slow = http.front.bearing("ann-key", (name, "1500"))
    list(slow.generate(5))
    assert submitted(http).ttft_target == 1.5
    turns = slow.open()
    slow.append(turns, 5)
    list(slow.turn(turns))
    assert submitted(http).ttft_target == 1.5
    http.complete(headers("ann-key") | {name: "250"}, prompt=[5])
    assert submitted(http).ttft_target == 0.25
    http.complete(headers("ann-key"), prompt=[5])
    assert submitted(http).ttft_target is None


@pytest.mark.parametrize("target", ["0", "-1", "nan", "inf", "soon", ""])
def test_a_target_that_is_no_time_is_refused(http: HttpFront, target: str) -> None:
    reply = http.complete(headers("ann-key") | {"x-slo-ttft-ms": target}, prompt=[5])
    assert reply.status == 400 and "x-slo-ttft-ms" in str(reply.body)
    assert not http.engine.of(m.Submit)


@pytest.mark.parametrize("priority", [2**31, -(2**31) - 1, 1.5, "high", True])
def test_a_priority_that_is_no_small_integer_is_refused(http: HttpFront, priority: object) -> None:
    reply = http.complete(headers("ann-key"), prompt=[5], priority=priority)
    assert reply.status == 400 and "priority" in str(reply.body)
    assert not http.engine.of(m.Submit)


def test_a_call_s_deadline_is_its_client_s_patience(http: HttpFront) -> None:
    list(http.front.bearing("ann-key").generate(5))
    assert HANG_SECONDS - 30 < submitted(http).patience <= HANG_SECONDS
    http.complete(headers("ann-key"), prompt=[5])
    assert submitted(http).patience == float("inf")
