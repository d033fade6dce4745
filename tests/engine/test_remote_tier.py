"""A remote store below host memory. Nodes find entries written by others. A store that fails,
returns wrong bytes or hangs changes no token. The store is a real S3 server."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.tiers.lower_tiers import LATE_SECONDS
from tasuki.engine.tiers.remote.bucket import (
    Bucket,
    Credentials,
    RemoteFailed,
    open_bucket,
    read_credentials,
)
from tasuki.engine.tiers.remote.remote_memory import (
    LOOKUP_SECONDS,
    NO_LOOKUP,
    Lookups,
    RemoteMemory,
    probe,
    remote_memory,
)
from tasuki.engine.tiers.remote.remote_objects import (
    LEAST_TOKENS,
    MOST_BYTES,
    Manifest,
    ObjectKeys,
    Pages,
    RemoteObjects,
    decoded,
    encoded,
    name_of,
    runs_of,
)
from tasuki.engine.tiers.store import MOST_FAILURES, Patience
from tasuki.engine.tiers.tier import CPU_LINK
from tests.harness.engines import alone, prompt, submit, tiny_parts
from tests.harness.kept_goldens import RemoteGoldens
from tests.harness.s3_server import BUCKET, S3Server, running_s3
from tests.harness.tcp_proxy import TcpProxy
from tests.harness.tiers import FaultyDisk, TieredEngine
from tests.harness.waiting import ManualClock, until

PROMPT = prompt(600, seed=1)
NEXT = PROMPT + alone(PROMPT, 2) + prompt(40, seed=2)
EXPECTED = alone(NEXT, 4)
KEPT = 601
"""Tokens of NEXT before the state left by PROMPT's answer."""
SLABS = 400


@pytest.fixture(autouse=True)
def near_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make fetches cheap, because so few tokens would otherwise be computed."""
    monkeypatch.setattr("tasuki.engine.assembly.parts.REMOTE_LINK", CPU_LINK)
    monkeypatch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


class TestGoldensOfAnotherNode(RemoteGoldens):
    device = "cpu"


class RemoteEngine(TieredEngine):
    def __init__(self, bucket: Bucket, folder: Path | None = None) -> None:
        """Start a node over the bucket. folder: folder of a disk above the store."""
        self.bucket = bucket

        def remote(clock: ManualClock) -> RemoteMemory:
            objects = RemoteObjects(bucket, tiny_parts(slabs=2).layout)
            return RemoteMemory(objects, Lookups(bucket, objects, clock), SLABS)

        disk = None
        if folder is not None:
            disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, SLABS).memory()
        super().__init__(slabs=40, host_slabs=60, disk=disk, remote=remote)

    @property
    def remote(self) -> m.TierReport:
        return self.reports[-1]

    def answer(self, name: str, tokens: list[int] = NEXT, salt: bytes = b"") -> list[int]:
        self.lone.post(submit(name, tokens, 4, salt=salt))
        self.lone.run()
        return self.lone.tokens(name)

    def objects(self, folder: str) -> list[str]:
        names = [each.name for each in self.bucket.names(f"{folder}/")]
        return [name[name.index(f"{folder}/") :] for name in names]


@contextmanager
def node(bucket: Bucket, folder: Path | None = None) -> Iterator[RemoteEngine]:
    engine = RemoteEngine(bucket, folder)
    yield engine
    engine.lone.run()
    engine.lone.assert_at_rest()
    engine.close()


@pytest.fixture
def folder(request: pytest.FixtureRequest) -> str:
    """Return a test's own folder in the bucket."""
    return f"{request.node.name.translate(str.maketrans('[]', '--'))}-{id(request)}"


@pytest.fixture
def bucket(store: S3Server, folder: str) -> Bucket:
    return store.bucket(folder)


@pytest.fixture
def written(bucket: Bucket) -> Bucket:
    """Run a node that answers PROMPT, writes its states to the bucket and ends."""
    with node(bucket) as first:
        first.lone.ask("first", PROMPT, 2)
        first.lone.run()
        assert first.remote.kept["recorded"] > 0
    return bucket


def test_a_node_finds_what_another_wrote(written: Bucket) -> None:
    with node(written) as second:
        assert second.answer("next") == EXPECTED
        hit = second.lone.hit("next")
        assert hit.usable_tokens == KEPT == hit.loaded["remote"]
        assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)
        assert second.remote.kept["found"] == 1 and second.remote.loads["done"] == 1
        assert second.remote.bytes["loaded"] > 0


def test_what_builds_on_what_was_found_is_found_too(written: Bucket) -> None:
    further = NEXT + EXPECTED + prompt(70, seed=3)
    with node(written) as second:
        assert second.answer("next") == EXPECTED
        second.lone.run()
        assert second.remote.kept["recorded"] > 0
    with node(written) as third:
        assert third.answer("further", further) == alone(further, 4)
        assert third.lone.hit("further").loaded["remote"] == len(NEXT) + 3


def test_a_disk_stands_between(bucket: Bucket, tmp_path: Path) -> None:
    with node(bucket, tmp_path) as first:
        first.lone.ask("first", PROMPT, 2)
        first.lone.run()
        assert [each.name for each in first.reports] == ["host", "disk", "remote"]
        assert first.remote.kept["recorded"] > 0
    with node(bucket) as second:
        assert second.answer("next") == EXPECTED
        assert second.lone.hit("next").loaded == {"remote": KEPT}


def test_a_salt_and_a_contract_keep_nodes_apart(
    written: Bucket, store: S3Server, folder: str
) -> None:
    with node(written) as second:
        assert second.answer("next", salt=b"other") == EXPECTED
        assert second.lone.hit("next").usable_tokens == 0
        assert second.remote.kept["found"] == 0
    with node(store.bucket(f"{folder}-other")) as third:
        assert third.answer("next") == EXPECTED
        assert third.lone.hit("next").usable_tokens == 0


def overwrite(bucket: Bucket, names: list[str], change: Callable[[bytes], bytes]) -> None:
    assert names
    for name in names:
        bucket.put(name, change(bucket.get(name, MOST_BYTES)))


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("kind", ["kv", "state"])
@pytest.mark.parametrize("lie", ["another bit", "half of it", "none of it"])
def test_a_store_that_lies_is_not_believed(written: Bucket, kind: str, lie: str) -> None:
    with node(written) as second:
        names = second.objects(kind)
        if lie == "another bit":
            overwrite(written, names, flipped)
        elif lie == "half of it":
            overwrite(written, names, lambda content: content[: len(content) // 2])
        else:
            for name in names:
                written.delete(name)
        assert second.answer("next") == EXPECTED
        hit = second.lone.hit("next")
        assert hit.usable_tokens == 0 and hit.causes[LOAD_FAILED] == KEPT
        assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)
        loads = second.remote.loads
        assert loads["mismatch" if lie == "another bit" else "broken"] == 1


@pytest.mark.parametrize("lie", ["torn", "of another prompt"])
def test_a_manifest_that_is_wrong_is_not_used(written: Bucket, lie: str) -> None:
    with node(written) as second:
        names = second.objects("at")

        def of_another(content: bytes) -> bytes:
            manifest = decoded(content)
            assert manifest is not None
            return encoded(
                Manifest(
                    manifest.salt,
                    (manifest.prompt + 1).astype("<i4").tobytes(),
                    manifest.kind,
                    manifest.pages,
                    manifest.digests,
                    manifest.slot,
                    manifest.slot_digest,
                )
            )

        overwrite(written, names, flipped if lie == "torn" else of_another)
        assert second.answer("next") == EXPECTED
        assert second.lone.hit("next").usable_tokens == 0
        assert second.remote.kept["torn"] > 0 and second.remote.kept["found"] == 0


def test_a_store_that_hangs_holds_up_nobody(written: Bucket, store: S3Server, folder: str) -> None:
    with (
        TcpProxy(store.address) as proxy,
        node(store.bucket(folder, address=proxy.address)) as second,
    ):
        # This lookup gets no answer.
        proxy.black_hole()
        second.lone.post(submit("next", NEXT, 4))
        second.lone.step()
        assert not second.is_over("next")
        second.clock.now += LOOKUP_SECONDS + 0.1
        second.step_until(lambda: second.is_over("next"))
        assert second.lone.tokens("next") == EXPECTED
        assert second.remote.kept["late"] == 1
        assert second.lone.hit("next").usable_tokens == 0
        proxy.heal()


def test_a_load_that_hangs_is_late(written: Bucket, store: S3Server, folder: str) -> None:
    with (
        TcpProxy(store.address) as proxy,
        node(store.bucket(folder, address=proxy.address)) as second,
    ):
        second.lone.post(submit("next", NEXT, 4))
        second.step_until(lambda: second.remote.kept["found"] == 1)
        proxy.black_hole()
        second.lone.step()
        other = prompt(20, seed=7)
        second.lone.post(submit("other", other, 3))
        second.step_until(lambda: second.is_over("other"))
        assert second.lone.tokens("other") == alone(other, 3)
        second.clock.now += 1e3 * LATE_SECONDS
        second.step_until(lambda: second.is_over("next"))
        assert second.lone.tokens("next") == EXPECTED
        loads = second.remote.loads
        # Chance decides if it had arrived before the partition.
        assert loads["late"] + loads["broken"] + loads["done"] == 1
        proxy.heal()


def test_a_store_that_is_gone_is_not_asked_for_a_while(store: S3Server, folder: str) -> None:
    clock = ManualClock()
    with TcpProxy(store.address) as proxy:
        bucket = store.bucket(folder, Patience(30.0, clock), proxy.address)
        with node(bucket) as one:
            proxy.cut()
            # Lookups fail, and so do writes.
            for number in range(MOST_FAILURES):
                long = prompt(300, seed=50 + number)
                assert one.answer(f"gone-{number}", long) == alone(long, 4)
            assert bucket.is_paused
            asked = one.remote.kept["asked"]
            assert one.answer("next") == EXPECTED
            assert one.remote.kept["asked"] == asked
            proxy.heal()
            clock.now += 31.0
            assert not bucket.is_paused
            bucket.put("a", b"b")


def test_what_was_flushed_nobody_finds(written: Bucket) -> None:
    with node(written) as second:
        second.lone.post(m.FlushCache(0))
        second.lone.run()
        second.step_until(lambda: emptied(second))
    with node(written) as third:
        assert third.answer("next") == EXPECTED
        assert third.lone.hit("next").usable_tokens == 0
        assert third.remote.kept["asked"] == 1 and third.remote.kept["found"] == 0


def test_a_node_that_runs_finds_nothing_that_another_flushed(written: Bucket) -> None:
    with node(written) as second, node(written) as third:
        third.lone.post(m.FlushCache(0))
        third.lone.run()
        third.step_until(lambda: emptied(third))
        assert second.answer("next") == EXPECTED
        assert second.lone.hit("next").usable_tokens == 0
        assert second.remote.kept["asked"] == 1 and second.remote.kept["found"] == 0


def test_a_lookup_before_a_flush_brings_nothing_after_it(written: Bucket) -> None:
    objects = RemoteObjects(written, tiny_parts(slabs=2).layout)
    lookups = Lookups(written, objects)
    found: list[Manifest] = []
    tokens = np.array(NEXT, np.int32)
    for flushes in (False, True):
        lookup = lookups.begin(b"", tokens, 0)
        until(lambda: lookups._any_found.is_set(), "the store did not answer")
        if flushes:
            objects.flushed()
            # Until the store has recorded the empty result.
            assert lookups.begin(b"", tokens, 0) is NO_LOOKUP
        found.extend(lookups.advance())
        assert lookup.is_over
    assert len(found) == 1
    objects.emptied()
    assert lookups.begin(b"", tokens, 0) is not NO_LOOKUP
    lookups.close()


def test_a_store_that_says_nonsense_ends_no_thread(
    written: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = RemoteObjects(written, tiny_parts(slabs=2).layout)
    lookups = Lookups(written, objects)
    found: list[Manifest] = []
    tokens = np.array(NEXT, np.int32)

    def looked_up() -> None:
        lookups.begin(b"", tokens, 0)
        until(lambda: lookups._any_found.is_set(), "the store did not answer")
        found.extend(lookups.advance())

    with monkeypatch.context() as patched:
        patched.setattr(written, "names", lambda folder: [None])
        for _ in range(8):
            looked_up()
    assert found == [] and objects.counters["failed"] == 8
    looked_up()
    assert len(found) == 1
    with pytest.raises(RemoteFailed, match="ValueError"):
        written.get(f"kv/{'0' * 32}-large", put_large(written))
    lookups.close()


def put_large(bucket: Bucket) -> int:
    """Put an object and return a byte limit one below its size."""
    bucket.put(f"kv/{'0' * 32}-large", bytes(1000))
    return 999


def test_lookups_that_wait_are_few(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = RemoteObjects(bucket, tiny_parts(slabs=2).layout)
    lookups = Lookups(bucket, objects)
    monkeypatch.setattr(lookups, "_start", lambda: None)
    tokens = np.array(NEXT, np.int32)
    begun = [lookups.begin(b"", tokens, 0) for _ in range(100)]
    assert sum(each is not NO_LOOKUP for each in begun) == 64


def test_a_store_that_is_slow_again_and_again_is_waited_for_no_more(
    written: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    objects = RemoteObjects(written, tiny_parts(slabs=2).layout)
    lookups = Lookups(written, objects, clock)
    tokens = np.array(NEXT, np.int32)

    def is_late() -> bool:
        lookup = lookups.begin(b"", tokens, 0)
        clock.now += LOOKUP_SECONDS + 0.1
        assert not [*lookups.advance()]
        return lookup is not NO_LOOKUP

    with monkeypatch.context() as patched:
        patched.setattr(lookups, "_start", lambda: None)
        assert [is_late() for _ in range(5)] == [True] * MOST_FAILURES + [False] * 2
        assert lookups.counters["late"] == MOST_FAILURES
        clock.now += 31.0
        # One is tried.
        assert [is_late(), is_late()] == [True, False]
    clock.now += 31.0
    found: list[Manifest] = []
    lookup = lookups.begin(b"", tokens, 0)
    until(lambda: bool(found.extend(lookups.advance()) or lookup.is_over), "no answer")
    assert found and lookups.begin(b"", tokens, 0) is not NO_LOOKUP
    lookups.close()


def emptied(engine: RemoteEngine) -> bool:
    memory = engine.parts.remote
    assert memory is not None
    return memory.objects.is_usable


def config(store: S3Server, **changes: object) -> EngineConfig:
    settings: dict[str, object] = {
        "model": "m",
        "host_cache_gib": 1.0,
        "remote_cache": f"s3://{BUCKET}/prefix",
        "remote_cache_gib": 1.0,
        "remote_endpoint": store.url,
        "remote_write_budget": 10.0,
        **changes,
    }
    return EngineConfig(**settings)  # type: ignore[arg-type]


def test_a_store_is_tried_at_the_start(
    store: S3Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    layout = tiny_parts(slabs=2).layout
    key, secret = store.credentials.key, store.credentials.secret
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with caplog.at_level(logging.DEBUG):
        found = remote_memory(config(store), layout, lambda: {"model": "one"})
        assert found is not None and found.slabs == 2**30 // layout.slab_bytes
        assert found.pages_a_second == 1e7 / layout.page_bytes
        found.close()
        assert remote_memory(EngineConfig(model="m"), layout, dict) is None
        with pytest.raises(EngineConfigError, match="give at least"):
            remote_memory(config(store, remote_cache_gib=1e-9), layout, dict)
        with pytest.raises(EngineConfigError, match="GenericError"):
            remote_memory(config(store, remote_endpoint="http://127.0.0.1:9"), layout, dict)
        with pytest.raises(EngineConfigError, match=r"is not s3://"):
            remote_memory(config(store, remote_cache="file:///x"), layout, dict)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another" + secret)
        with pytest.raises(EngineConfigError, match="403") as refused:
            remote_memory(config(store), layout, dict)
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(EngineConfigError, match="AWS_SECRET_ACCESS_KEY is not in"):
            remote_memory(config(store), layout, dict)
    for text in (caplog.text, str(refused.value), repr(refused.value.__cause__)):
        assert secret not in text and key not in text


def test_a_store_that_returns_something_else_is_refused(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe(bucket)
    assert bucket.names("probe/") == []
    monkeypatch.setattr(bucket, "get", lambda name, most: b"")
    with pytest.raises(RemoteFailed, match="is not what was put there"):
        probe(bucket)


def test_credentials_are_of_the_environment_or_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = K\naws_secret_access_key = S%\n")
    file.chmod(0o600)
    assert read_credentials(str(file)) == Credentials("K", "S%")
    assert "S%" not in repr(read_credentials(str(file)))
    file.chmod(0o640)
    with pytest.raises(RemoteFailed, match="chmod 600"):
        read_credentials(str(file))
    file.chmod(0o600)
    file.write_text("S3cret\n")
    with pytest.raises(RemoteFailed) as wrong:
        read_credentials(str(file))
    assert "S3cret" not in str(wrong.value)
    file.write_text("[other]\n")
    with pytest.raises(RemoteFailed, match="no profile"):
        read_credentials(str(file))
    with pytest.raises(RemoteFailed, match="cannot be read"):
        read_credentials(str(tmp_path / "none"))
    found = {"AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T"}
    assert read_credentials(None, found) == Credentials("K", "S", "T")


def test_a_name_without_a_store_is_refused() -> None:
    for url in ("http://a", "s3://", "s3://user:secret@bucket"):
        with pytest.raises(RemoteFailed) as refused:
            open_bucket(url, None, "f", Credentials("K", "S"), {})
        assert "secret" not in str(refused.value)


def of(tokens: int, seed: int = 0) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    return np.random.default_rng(seed).integers(0, 1000, tokens).astype(np.int32)


def test_a_prompt_finds_its_longest_beginning_by_names_alone() -> None:
    whole = of(5000)
    lengths = (256, 300, 700, 1023, 1024, 4096, 4999)
    names = [name_of(b"s", whole[:length]) for length in lengths]
    keys = ObjectKeys(b"s", whole)
    folders = keys.folders()
    assert len(folders) == 5 and len(set(folders)) == 5
    for length, name in zip(lengths, names, strict=True):
        assert name.rpartition("/")[0] in folders
        assert keys.matching(names, length - 1) == names[-1]
    assert keys.matching(names[:3], 0) == names[2]
    assert keys.matching(names, 4999) is None
    # The whole prompt cannot be used as its prefix: its last token is always computed.
    assert keys.matching([name_of(b"s", whole)], 0) is None
    other = whole.copy()
    other[250] += 1
    for each in (ObjectKeys(b"t", whole), ObjectKeys(b"s", other)):
        assert each.matching(names, 0) is None
        assert not set(each.folders()) & set(folders)
    nonsense = ["nonsense", "12-", "-1-" + "a" * 32, "9" * 5000 + "-" + "a" * 32]
    assert keys.matching([f"at/x/{each}" for each in nonsense], 0) is None


def test_a_manifest_that_is_not_whole_is_none() -> None:
    tokens = of(LEAST_TOKENS + 10)
    pages = runs_of([("a", 0), ("a", 1), ("b", 5), ("b", 6), ("a", 2)])
    assert pages == (Pages("a", 0, 2), Pages("b", 5, 2), Pages("a", 2, 1))
    manifest = Manifest(
        b"", tokens.tobytes(), "turn_end", pages, bytes(range(80)), "state/x", bytes(16)
    )
    content = encoded(manifest)
    found = decoded(content)
    assert found == manifest
    assert (found.prompt == tokens).all() and len(found.page_digests) == 5
    assert found.places == [("a", 0), ("a", 1), ("b", 5), ("b", 6), ("a", 2)]
    for at in range(0, len(content), 7):
        assert decoded(content[:at]) is None
        assert decoded(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]) is None
    short = Manifest(
        b"", tokens[:20].tobytes(), "turn_end", (Pages("a", 0, 1),), bytes(16), "x", bytes(16)
    )
    assert decoded(encoded(short)) is None
    missing = Manifest(
        b"", tokens.tobytes(), "turn_end", pages[:1], bytes(80), "state/x", bytes(16)
    )
    assert decoded(encoded(missing)) is None
