"""Tests of pictures in sessions over gRPC: golden answers, resumed turns, files dropped."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client, Session
from tasuki.engine.messages import FileCoding, Media, PictureFile, PromptPicture
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.pycache.keys import PictureDigest
from tasuki.server.auth.callers import NOBODY
from tasuki.server.pictures.kept_pictures import SessionPictures
from tasuki.server.sessions import SESSIONS_OF_PICTURES, SessionStore
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ask
from tests.harness.picture_answers import CASES, FOLDER
from tests.harness.picture_files import png_of
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running

pytestmark = needs_goldens
TURNS = ("middle", "turn2", "turn3")
ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        yield found


def parts_of(message: Mapping[str, Any]) -> Prompt:
    """Return a golden message for the client: texts and files."""
    parts = [
        (FOLDER / "images" / part["image"]).read_bytes() if "image" in part else part["text"]
        for part in message["content"]
    ]
    return Prompt(messages=[{"role": message["role"], "parts": parts}])


def options(name: str) -> SamplingOptions:
    return {"max_new_tokens": len(CASES[name]["greedy"]), "ignore_eos": True}


def turn(session: Session, name: str) -> int:
    """Run one golden turn. Return the number of its cached tokens."""
    case = CASES[name]
    session.append(parts_of(case["messages"][-1]))
    return answered(session, name)


def answered(session: Session, name: str) -> int:
    case = CASES[name]
    answer = session.generate(**options(name)).result()
    assert [*answer.token_ids] == case["greedy"]
    assert answer.usage.prompt_tokens == len(case["prompt"])
    assert answer.usage.hit is not None
    return answer.usage.hit.usable_tokens


def test_a_session_of_pictures_resumes_at_exact_turn_ends(node: Node) -> None:
    with node.client.open_session(b"resumes") as session:
        ended = 0
        for name in TURNS:
            assert turn(session, name) == ended
            ended = len(CASES[name]["prompt"]) + len(CASES[name]["greedy"]) - 1


def test_a_forked_session_keeps_its_pictures(node: Node) -> None:
    with node.client.open_session(b"forks") as session:
        turn(session, "middle")
        twin = session.fork()
        session.close()
        node.client.flush()
        assert turn(twin, "turn2") == 0
        twin.close()


def test_a_lost_session_is_rebuilt_with_its_pictures(node: Node) -> None:
    """The node forgets it, and the client sends all again."""
    with node.client.open_session(b"lost") as session:
        turn(session, "middle")
        first = session.id
        with grpc.insecure_channel(node.address) as channel:
            close = pb.SessionCloseRequest(session_id=first)
            pb_grpc.SessionStub(channel).Close(close)
        turn(session, "turn2")
        assert session.id != first


@contextmanager
def small_budget() -> Iterator[Node]:
    flag = ("--session-pictures-mib", "0")
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP, *flag)) as found:
        yield found


def test_a_file_gone_is_missed_only_if_its_rows_are() -> None:
    with small_budget() as node, Client(node.address, retry=ONCE) as client:
        session = client.open_session(b"gone")
        session.append(parts_of(CASES["middle"]["messages"][0]))
        with pytest.raises(ClientError, match="picture 1 of the session") as refused:
            session.generate(**options("middle")).result()
        assert refused.value.kind == "picture_gone"
        # Somebody else's chat under the same salt leaves the prompt in the cache.
        whole = parts_of(CASES["middle"]["messages"][0])
        client.generate(whole, cache_salt=b"gone", **options("middle")).result()
        again = client.open_session(b"gone")
        again.append(whole)
        assert answered(again, "middle") > 0


def test_a_broken_picture_leaves_the_session_as_it_was(node: Node) -> None:
    with node.client.open_session(b"broken") as session:
        turn(session, "middle")
        wrong = Prompt(messages=[{"role": "user", "parts": ["see", b"words"]}])
        with pytest.raises(ClientError, match=r"items\[0\].parts\[1\] holds no known picture"):
            session.append(wrong)
        turn(session, "turn2")


def test_metrics_count_pictures_and_their_bytes(node: Node) -> None:
    with node.client.open_session(b"metrics") as session:
        turn(session, "middle")
        text = ask(node.http_address, "GET", "/metrics").body.decode()
        size = (FOLDER / "images" / picture_of("middle")).stat().st_size
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(lines['tasuki_media_bytes{holder="sessions"}']) >= size
        assert float(lines['tasuki_pictures_total{outcome="encoded"}']) >= 1
        refused = float(lines['tasuki_pictures_total{outcome="refused"}'])
        for stage in ("decode", "resize", "tower", "wait"):
            assert float(lines[f'tasuki_picture_seconds_count{{stage="{stage}"}}']) >= 1
        assert float(lines['tasuki_picture_rows_bytes{use="kept"}']) > 0
    with pytest.raises(ClientError):
        wrong = Prompt(messages=[{"role": "user", "parts": [png_of(1 << 14, 1 << 14)]}])
        node.client.generate(wrong).result()
    text = ask(node.http_address, "GET", "/metrics").body.decode()
    assert f'tasuki_pictures_total{{outcome="refused"}} {refused + 1}' in text


def picture_of(name: str) -> str:
    (found,) = [part["image"] for part in CASES[name]["messages"][-1]["content"] if "image" in part]
    return str(found)


def picture(start: int, size: int) -> PromptPicture:
    file = PictureFile(Media(b"x" * size), FileCoding.PLAIN, 1, 1, f"at {start}")
    return PromptPicture(start, 1, 1, PictureDigest(b"d" * 32), file=file)


def test_the_oldest_files_go_first_and_places_stay() -> None:
    held = SessionPictures()
    held.append([picture(1, 10), picture(5, 20)], 100)
    held.append([picture(2, 30)], 200)
    assert [one.start for one in held.placed] == [101, 105, 202] and held.nbytes == 60
    twin = held.copy()
    assert held.drop_oldest() == 10 and held.nbytes == 50
    assert held.drop_oldest() == 20 and held.drop_oldest() == 30 and held.drop_oldest() == 0
    assert [one.file.coding for one in held.placed if one.file] == [FileCoding.GONE] * 3
    assert [one.start for one in held.placed] == [101, 105, 202] and held.nbytes == 0
    assert twin.nbytes == 60 and twin.drop_oldest() == 10
    assert [one.file.place for one in twin.placed if one.file][2] == (
        "picture 3 of the session (at 2)"
    )


def test_a_lost_file_is_sent_again_until_no_attempt_is_left() -> None:
    """The client opens the session anew. Here it cannot help, because the node keeps no file."""
    policy = RetryPolicy(attempts=3, first_pause=0.01)
    with small_budget() as node, Client(node.address, retry=policy) as client:
        session = client.open_session(b"again")
        session.append(parts_of(CASES["middle"]["messages"][0]))
        first = session.id
        with pytest.raises(ClientError) as refused:
            session.generate(**options("middle")).result()
        assert refused.value.kind == "picture_gone" and session.id != first


def test_sessions_used_long_ago_lose_their_files_first() -> None:
    now = 0.0
    engine = Mock(open_cursor=AsyncMock(return_value=1), fork_cursor=AsyncMock(return_value=2))
    store = SessionStore(engine, lambda: now, picture_bytes=10)

    async def opened(size: int) -> str:
        nonlocal now
        now += 1.0
        session = await store.open(NOBODY, b"")
        store.add_pictures(session, [picture(1, size)])
        return session.id

    async def run() -> None:
        names = [await opened(10) for _ in range(SESSIONS_OF_PICTURES)]
        assert store.picture_bytes == 10 * SESSIONS_OF_PICTURES
        # One session alone has its own budget, whatever the others leave.
        large = store.idle(NOBODY, await opened(11))
        assert large.pictures.nbytes == 0
        kept = store.idle(NOBODY, names[0])
        twin = await store.fork(NOBODY, names[-1])
        assert twin.pictures.nbytes == 10
        assert store.picture_bytes == 10 * SESSIONS_OF_PICTURES
        assert store.idle(NOBODY, names[1]).pictures.nbytes == 0 < kept.pictures.nbytes
        store.close(NOBODY, names[0])
        assert store.picture_bytes == 10 * (SESSIONS_OF_PICTURES - 1)

    asyncio.run(run())
