"""TLS, mTLS and the API key: who gets in, who does not, and what each is told."""

import asyncio
import json
import ssl
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tasuki.cli.launcher import Daemon
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.prefill_node.node import require_named_peers
from tasuki.server.auth.access import Access
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.server.grpc.server import start_server
from tasuki.server.http.server import start_http_server
from tasuki.server.text.text_codec import TextCodec
from tasuki.utils.tls import ClientTls, ServerTls, TlsError

from tests.harness.certificates import Authority, Issued
from tests.harness.daemons import flags, random_prompt
from tests.harness.front_fixtures import running_front
from tests.harness.waiting import HANG_SECONDS

CODEC = TextCodec(320, 4096, None, None)


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
    with running_front(CODEC, shown(issued)) as running:
        assert stats_status(running.address, ClientTls(authority.path)) is grpc.StatusCode.OK
        assert stats_status(running.address, None) is grpc.StatusCode.UNAVAILABLE


def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path, issued: Issued) -> None:
    stranger = Authority(tmp_path, "stranger")
    with running_front(CODEC, shown(issued)) as running:
        status = stats_status(running.address, ClientTls(stranger.path))
    assert status is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls_asks_for_a_certificate_of_the_authority(
    tmp_path: Path, authority: Authority, issued: Issued
) -> None:
    mine, strange = authority.issue("node"), Authority(tmp_path, "stranger").issue("node")
    with running_front(CODEC, shown(issued, tls_client_ca=authority.path)) as running:

        def status(leaf: Issued | None) -> grpc.StatusCode:
            pair = ("", "") if leaf is None else (leaf.certificate, leaf.key)
            return stats_status(running.address, ClientTls(authority.path, *pair))

        assert status(mine) is grpc.StatusCode.OK
        assert status(None) is grpc.StatusCode.UNAVAILABLE
        assert status(strange) is grpc.StatusCode.UNAVAILABLE


def test_the_key_guards_grpc_but_not_health() -> None:
    with running_front(CODEC, ServerConfig(api_key="s3cret")) as running:
        assert stats_status(running.address, None, "s3cret") is grpc.StatusCode.OK
        assert stats_status(running.address, None) is grpc.StatusCode.UNAUTHENTICATED
        assert stats_status(running.address, None, "other") is grpc.StatusCode.UNAUTHENTICATED
        with Client(running.address) as client, pytest.raises(ClientError) as refused:
            client.generate(Prompt(token_ids=[5, 6])).result()
        assert refused.value.kind == "invalid_api_key"
        with grpc.insecure_channel(running.address) as channel:
            reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_secrets_stay_out_of_repr() -> None:
    config = ServerConfig(api_key="s3cret")
    assert "s3cret" not in repr(config) + repr(config.access)


def test_http_speaks_tls(authority: Authority, issued: Issued) -> None:
    async def ask() -> object:
        access = Access(ServerTls(issued.certificate, issued.key), api_key="s3cret")
        server = await start_http_server("127.0.0.1:0", [], lambda: None, access)
        context = ssl.create_default_context(cafile=authority.path)
        request = urllib.request.Request(
            f"https://{server.address}/version", headers={"Authorization": "Bearer s3cret"}
        )

        def fetch() -> object:
            with urllib.request.urlopen(request, context=context, timeout=HANG_SECONDS) as reply:
                return json.load(reply)

        try:
            return await asyncio.to_thread(fetch)
        finally:
            await server.drain()

    reply = asyncio.run(ask())
    assert isinstance(reply, dict) and reply["version"]


def test_tls_may_leave_the_host(issued: Issued) -> None:
    async def listen() -> int:
        access = Access(ServerTls(issued.certificate, issued.key))
        server = await start_server("0.0.0.0:0", [], access)
        await server.drain(0)
        return server.port

    assert asyncio.run(listen()) > 0


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
    guarded = [
        *flags(),
        *("--tls-cert", issued.certificate, "--tls-key", issued.key),
        *("--tls-client-ca", authority.path, "--api-key", "s3cret"),
    ]
    tls = ClientTls(authority.path, issued.certificate, issued.key)
    prompt = Prompt(token_ids=random_prompt(300, 1))
    with ExitStack() as stack:

        def started(command: str, *more: str) -> str:
            daemon = Daemon(command, [*guarded, *more])
            stack.callback(daemon.stop)
            address = daemon.wait_ready()
            return daemon.handover_address or address

        links = ("--prefill", started("prefill", *apart), "--prefill-ca", authority.path)
        client = stack.enter_context(Client(started("decode", *links), tls=tls, api_key="s3cret"))
        answer = client.generate(prompt, max_new_tokens=4, ignore_eos=True).result()
    assert answer.usage.prefilled_on == "prefill"
    assert answer.usage.transfer is not None and answer.usage.transfer.pages == 5
