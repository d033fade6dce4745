"""TLS, mTLS and the API key: who gets in, who does not, and what each is told."""

import json
import ssl
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.prefill_node.engine_side import require_named_peers
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.utils.tls import ClientTls, ServerTls, TlsError
from tests.harness.api_keys import headers
from tests.harness.certificates import Authority, Issued
from tests.harness.daemons import Node, flags, meet, random_prompt
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_fixtures import running_http
from tests.harness.refusals import refusal
from tests.harness.running_nodes import running
from tests.harness.waiting import HANG_SECONDS


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def issued(authority: Authority) -> Issued:
    return authority.issue()


def shown(issued: Issued, tls_client_ca: str = "") -> ServerConfig:
    return ServerConfig(
        tls_cert=issued.certificate, tls_key=issued.key, tls_client_ca=tls_client_ca
    )


def stats_status(address: str, tls: ClientTls | None, api_key: str = "") -> grpc.StatusCode:
    with Client(address, tls=tls, api_key=api_key) as client:
        try:
            client.stats()
        except ClientError as error:
            return error.status
    return grpc.StatusCode.OK


def test_a_client_that_trusts_the_authority_gets_in(authority: Authority, issued: Issued) -> None:
    with running_front(config=shown(issued)) as running:
        assert stats_status(running.address, ClientTls(authority.path)) is grpc.StatusCode.OK
        assert stats_status(running.address, None) is grpc.StatusCode.UNAVAILABLE


def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path, issued: Issued) -> None:
    stranger = Authority(tmp_path, "stranger")
    with running_front(config=shown(issued)) as running:
        status = stats_status(running.address, ClientTls(stranger.path))
    assert status is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_asks_for_a_certificate_of_the_authority(
    tmp_path: Path, authority: Authority, issued: Issued
) -> None:
    mine, strange = authority.issue("node"), Authority(tmp_path, "stranger").issue("node")
    with running_front(config=shown(issued, tls_client_ca=authority.path)) as running:

        def status(leaf: Issued | None) -> grpc.StatusCode:
            pair = ("", "") if leaf is None else (leaf.certificate, leaf.key)
            return stats_status(running.address, ClientTls(authority.path, *pair))

        assert status(mine) is grpc.StatusCode.OK
        assert status(None) is grpc.StatusCode.UNAVAILABLE
        assert status(strange) is grpc.StatusCode.UNAVAILABLE


def test_the_key_guards_grpc_but_not_health() -> None:
    with running_front(config=ServerConfig(api_key="s3cret")) as running:
        assert stats_status(running.address, None, "s3cret") is grpc.StatusCode.OK
        assert stats_status(running.address, None) is grpc.StatusCode.UNAUTHENTICATED
        assert stats_status(running.address, None, "other") is grpc.StatusCode.UNAUTHENTICATED
        assert refusal(running.calls.generate, 5).kind == "invalid_api_key"
        health = health_pb2_grpc.HealthStub(running.channel)
        reply = health.Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_http_speaks_tls(authority: Authority, issued: Issued) -> None:
    context = ssl.create_default_context(cafile=authority.path)
    with running_http(config=replace(shown(issued), api_key="s3cret")) as http:
        url = f"https://{http.server.address}/version"
        request = urllib.request.Request(url, headers=headers("s3cret"))
        with urllib.request.urlopen(request, context=context, timeout=HANG_SECONDS) as reply:
            assert json.load(reply)["version"]


def test_files_that_are_no_certificates_are_named(tmp_path: Path, issued: Issued) -> None:
    other = Authority(tmp_path, "other").issue()
    nothing, noise = str(tmp_path / "nothing.pem"), str(tmp_path / "noise.pem")
    Path(noise).write_text("noise")
    for tls, part in (
        (ServerTls(nothing, issued.key), "nothing.pem cannot be read"),
        (ServerTls(issued.certificate, other.key), "are not a certificate and its key"),
        (ServerTls(noise, issued.key), "noise.pem"),
        (ServerTls(issued.certificate, issued.key, noise), "noise.pem holds no certificate"),
    ):
        with pytest.raises(TlsError, match=part):
            tls.grpc_credentials()
    with pytest.raises(TlsError, match="holds no certificate"):
        ClientTls(noise).grpc_credentials()


@pytest.mark.parametrize(
    "fields", [{"tls_cert": "a"}, {"tls_key": "a"}, {"tls_client_ca": "a"}], ids=str
)
def test_half_a_tls_configuration_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="tls_cert and tls_key"):
        ServerConfig(**fields)


def test_a_prefill_node_off_loopback_must_know_its_peers() -> None:
    tls = {"tls_cert": "a", "tls_key": "b"}

    def require(bind: str, **fields: Any) -> None:
        require_named_peers(bind, ServerConfig(**fields).access)

    with pytest.raises(BindError, match="--tls-client-ca"):
        require("0.0.0.0:0", **tls)
    require("0.0.0.0:0", tls_client_ca="c", **tls)
    require("0.0.0.0:0", insecure=True)
    require("127.0.0.1:0")


@pytest.mark.parametrize("apart", [(), ("--handover-bind", "127.0.0.1:0")], ids=["one", "two"])
def test_a_pair_hands_over_under_mutual_tls(
    authority: Authority, issued: Issued, apart: tuple[str, ...]
) -> None:
    guarded = (
        *("--tls-cert", issued.certificate, "--tls-key", issued.key),
        *("--tls-client-ca", authority.path, "--api-key", "s3cret"),
    )
    tls = ClientTls(authority.path, issued.certificate, issued.key)
    prompt = Prompt(token_ids=random_prompt(300, 1))
    with (
        running(Node("prefill", *flags(), *guarded, *apart)) as prefill,
        running(
            Node(
                *("decode", *flags(), *guarded),
                *("--prefill", prefill.handover_address, "--prefill-ca", authority.path),
            )
        ) as decode,
        Client(decode.address, tls=tls, api_key="s3cret") as client,
    ):
        meet(client)
        answer = client.generate(prompt, max_new_tokens=4, ignore_eos=True).result()
    assert answer.usage.prefilled_on == "prefill"
    assert answer.usage.transfer is not None and answer.usage.transfer.pages == 5
