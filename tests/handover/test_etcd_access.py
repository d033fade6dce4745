"""An etcd with a certificate and a password, set up as in deploy/kubernetes."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tasuki.decode_node.config import DecodeConfig
from tasuki.server.config import ServerConfig
from tasuki.server.discovery.etcd import Etcd, EtcdError
from tasuki.server.discovery.etcd_access import EtcdAccess, EtcdAccessError, EtcdLogin
from tasuki.server.discovery.registration import Registration
from tests.harness.certificates import Authority
from tests.harness.daemons import flags, fleet, meet
from tests.harness.etcd_process import EtcdProcess, running_etcd
from tests.harness.programs import finished, output_of
from tests.harness.running_nodes import refused_start, require_nixl
from tests.harness.waiting import HANG_SECONDS

SETUP = Path(__file__).parents[2] / "deploy" / "kubernetes" / "etcd-users.py"
PREFIX = "/tasuki/prefill/"


@dataclass(frozen=True)
class Guarded:
    """An etcd with access control. ca, login: files. set_up: the command that makes the user."""

    etcd: EtcdProcess
    ca: str
    login: str
    set_up: tuple[object, ...]

    @property
    def access(self) -> EtcdAccess:
        return EtcdAccess.load(self.ca, self.login)

    @property
    def flags(self) -> tuple[str, ...]:
        return ("--etcd", self.etcd.url, "--etcd-ca", self.ca, "--etcd-login", self.login)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("etcd")
    certificates = tmp_path_factory.mktemp("certificates")
    authority = Authority(certificates, "etcd")
    root, login = certificates / "root", certificates / "login"
    root.write_text("root:a-root-password\n")
    login.write_text("tasuki:a-password:with-a-colon\n")
    with running_etcd(folder, authority=authority) as etcd:
        files = (f"--ca={authority.path}", f"--root={root}", f"--login={login}")
        command = (sys.executable, SETUP, f"--endpoint={etcd.url}", *files, "--prefix=/tasuki/")
        output_of(command)
        yield Guarded(etcd, authority.path, str(login), command)


def asked(client: Callable[[], Etcd], ask: Callable[[Etcd], Awaitable[object]]) -> object:
    """Return the answer to one question."""

    async def one() -> object:
        etcd = client()
        try:
            return await ask(etcd)
        finally:
            await closed(etcd)

    return asyncio.run(one())


async def closed(etcd: Etcd) -> None:
    """Close the client and wait: a TLS connection ends some rounds of the loop later, and a test
    ends its loop at once."""
    await etcd.close()
    await asyncio.sleep(0.25)


def put(key: str) -> Callable[[Etcd], Awaitable[object]]:
    async def granted(etcd: Etcd) -> None:
        await etcd.put(key, "127.0.0.1:1", await etcd.grant(60))

    return granted


def test_a_user_writes_the_nodes_keys_and_no_others(guarded: Guarded) -> None:
    def client() -> Etcd:
        return Etcd(guarded.etcd.url, guarded.access)

    asked(client, put(PREFIX + "one"))
    assert asked(client, lambda etcd: etcd.range(PREFIX))
    with pytest.raises(EtcdError, match="permission denied"):
        asked(client, put("/other/one"))


@pytest.mark.parametrize("ask", [put(PREFIX + "two"), lambda etcd: etcd.range(PREFIX)])
@pytest.mark.parametrize(
    ("login", "complaint"),
    [(None, "refused"), (EtcdLogin("tasuki", "a-guess"), "check etcd_login")],
)
def test_without_the_password_nothing_is_read_or_written(
    guarded: Guarded,
    ask: Callable[[Etcd], Awaitable[object]],
    login: EtcdLogin | None,
    complaint: str,
) -> None:
    with pytest.raises(EtcdError, match=complaint):
        asked(lambda: Etcd(guarded.etcd.url, replace(guarded.access, login=login)), ask)


def test_a_watch_that_is_refused_is_a_typed_error(guarded: Guarded) -> None:
    async def watched() -> None:
        etcd = Etcd(guarded.etcd.url, guarded.access)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                async for _ in etcd.changed("/other/", 1):
                    pass
        finally:
            await closed(etcd)

    with pytest.raises(EtcdError):
        asyncio.run(watched())


def test_an_etcd_of_another_authority_is_not_asked(guarded: Guarded, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    access = EtcdAccess.load(stranger.path, guarded.login)
    with pytest.raises(EtcdError, match="CERTIFICATE_VERIFY_FAILED"):
        asked(lambda: Etcd(guarded.etcd.url, access), lambda etcd: etcd.range(PREFIX))


def test_setting_it_up_again_changes_nothing(guarded: Guarded) -> None:
    output_of(guarded.set_up)
    asked(lambda: Etcd(guarded.etcd.url, guarded.access), put(PREFIX + "three"))
    wrong = [
        f"--root={guarded.login}" if "--root" in str(word) else word for word in guarded.set_up
    ]
    done = finished(wrong)
    assert done.returncode == 1 and "etcd refused" in done.stderr and "Traceback" not in done.stderr


async def test_a_client_whose_token_has_ended_logs_in_again(
    tmp_path: Path, guarded: Guarded
) -> None:
    etcd = Etcd(guarded.etcd.url, guarded.access)
    membership = DecodeConfig(etcd=guarded.etcd.url).membership(guarded.access)
    node = Registration(Etcd(guarded.etcd.url, guarded.access), PREFIX + "kept", "127.0.0.1:9")
    node.start()
    async with aclosing(membership.changes()) as changes:  # type: ignore[type-var]
        async with asyncio.timeout(HANG_SECONDS):
            while "127.0.0.1:9" not in await anext(changes):
                pass
        # A restarted etcd knows none of its tokens.
        await asyncio.to_thread(guarded.etcd.stop)
        await asyncio.to_thread(guarded.etcd.start)
        await etcd.range(PREFIX)
        await node.stop()
        async with asyncio.timeout(HANG_SECONDS):
            while "127.0.0.1:9" in await anext(changes):
                pass
    await closed(etcd)


def test_nodes_find_each_other_there(guarded: Guarded) -> None:
    require_nixl()
    with fleet() as start:
        start("prefill", *flags(), "--name", "guarded", *guarded.flags)
        decode = start("decode", *flags(), *guarded.flags)
        meet(decode)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot be read"), ("tasuki", "one line, USER:PASSWORD"), ("a:b\nc:d", "one line")],
)
def test_a_login_that_is_none_is_refused(
    tmp_path: Path, content: str | None, complaint: str
) -> None:
    login = tmp_path / "login"
    if content is not None:
        login.write_text(content)
    with pytest.raises(EtcdAccessError, match=complaint):
        EtcdAccess.load("", str(login))


def test_an_authority_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EtcdAccessError, match="cannot be used"):
        EtcdAccess.load(str(tmp_path / "absent"), "")


def test_a_password_does_not_go_in_plain_text_to_another_host(tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("tasuki:a-password")
    config = ServerConfig(etcd_login=str(login))
    for endpoint, is_refused in (
        ("http://etcd.example:2379", True),
        ("https://etcd.example:2379", False),
        ("http://127.0.0.1:2379", False),
    ):
        decode = DecodeConfig(etcd=endpoint)
        if is_refused:
            with pytest.raises(EtcdAccessError, match="give an https URL"):
                decode.membership(config.etcd_access)
        else:
            decode.membership(config.etcd_access)
    assert "a-password" not in repr(config.etcd_access)


def test_a_node_does_not_start_with_it(tmp_path: Path) -> None:
    login = tmp_path / "login"
    login.write_text("tasuki:a-password")
    more = ("--http-etcd", "http://etcd.example:2379", "--etcd-login", str(login))
    words = refused_start("serve", *flags(), "--http-bind", "127.0.0.1:0", *more)
    assert "give an https URL" in words[-1], words
