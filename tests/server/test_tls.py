"""Tests of TLS, mTLS and the API key: admission, the error for each caller, and the validity of
certificates."""

import json
import ssl
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.prefill_node.engine_side import require_named_peers
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.node_watch import NodeFiles
from tasuki.utils.tls import ClientTls, ServerTls, TlsError, not_after_dates
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


ENDS = [
    datetime(2027, 3, 1, 12, 30, 59, tzinfo=UTC),
    datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
    # From here on, the date's year is written with four digits.
    datetime(2050, 1, 1, tzinfo=UTC),
    datetime(2999, 6, 7, 8, 9, 10, tzinfo=UTC),
    datetime(2001, 1, 1, tzinfo=UTC),
]


def ending(end: datetime) -> trustme.LeafCert:
    # trustme's authority expires, but openssl does not check it here.
    return trustme.CA().issue_cert("localhost", not_before=end - timedelta(days=9), not_after=end)


@pytest.mark.parametrize("end", ENDS)
def test_the_date_is_the_certificate_s(end: datetime) -> None:
    pem = ending(end).cert_chain_pems[0].bytes()
    known = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    assert not_after_dates(pem.decode()) == [known.timestamp()] == [end.timestamp()]


def test_a_file_may_hold_several_with_words_between() -> None:
    pems = [ending(end).cert_chain_pems[0].bytes().decode() for end in ENDS[:2]]
    found = not_after_dates(f"a chain\n{pems[0]}\nand\n{pems[1]}")
    assert found == [end.timestamp() for end in ENDS[:2]]
    assert not_after_dates("no certificate") == []


def test_what_is_no_certificate_is_an_error_and_never_a_date() -> None:
    whole = ending(ENDS[0]).cert_chain_pems[0].bytes().decode()
    with pytest.raises(ValueError, match="no end"):
        not_after_dates(whole.partition("-----END")[0])
    lines = whole.splitlines()
    short = "\n".join([lines[0], lines[1], lines[-1]])
    with pytest.raises(ValueError, match="ends within"):
        not_after_dates(short)


def test_a_node_tells_when_what_it_lives_on_ends(tmp_path: Path) -> None:
    chain, old, new = (tmp_path / name for name in ("chain.pem", "old.pem", "both.pem"))
    first, later = (ending(end).cert_chain_pems[0].bytes() for end in ENDS[:2])
    chain.write_bytes(later + first)
    new.write_bytes(first + later)
    old.write_bytes(first)
    tls = ServerTls(str(chain), "unread", str(new))
    files = NodeFiles({"prefill_ca": str(old), "gone": str(tmp_path / "gone")})
    assert files.certificate_ends(tls) == {
        "tls_cert": ENDS[0].timestamp(),
        "tls_client_ca": ENDS[1].timestamp(),
        "prefill_ca": ENDS[0].timestamp(),
    }
    assert NodeFiles().certificate_ends(None) == {}


def test_the_files_of_other_tests_have_dates(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    leaf = authority.issue()
    for path in (authority.path, leaf.certificate):
        (found,) = not_after_dates(Path(path).read_text())
        known = x509.load_pem_x509_certificate(Path(path).read_bytes())
        assert found == known.not_valid_after_utc.timestamp()
