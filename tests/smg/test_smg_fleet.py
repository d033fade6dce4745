"""Tests of the unmodified smg gateway in front of four nodes. The nodes' own events suffice to send
every session to the node with its cache. This holds after the cache moved without the gateway, and
after the gateway's restart."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.daemons import Node, asked, flags, random_prompt
from tests.harness.running_nodes import running
from tests.harness.smg_process import Smg, names_of_pages, require_smg, smg, usable_pages
from tests.harness.waiting import until

require_smg()

NODES = 4
SESSIONS = 6
TURNS = 3
ANSWER = 8
ARENA_MIB = 128
"""Arena size, enough for the states of all sessions on one node. The gateway places first turns at
random."""
# By default smg sends one hit in eight to a node with few blocks, and misses to young nodes.
BY_CACHE_ALONE = ("--worker-warmup-secs", "0", "--worker-warmup-divert-every", "0")


@dataclass
class Session:
    """A session of the fleet. text: prompts and answers of all turns so far."""

    text: tuple[int, ...]
    homes: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Fleet:
    nodes: tuple[Node, ...]
    folder: Path

    @contextmanager
    def gateway(self) -> Iterator[Smg]:
        """Yield a new gateway after it learned the contents of all nodes."""
        urls = [f"grpc://{node.address}" for node in self.nodes]
        policy = ("--policy", "cache_aware", *BY_CACHE_ALONE)
        with smg(self.folder, len(urls), "--worker-urls", *urls, *policy) as gateway:
            subscribed = partial(gateway.metric, "smg_kv_event_subscriptions_total")
            until(lambda: subscribed() >= NODES, "not subscribed")
            self.wait_until_known(gateway)
            yield gateway
            for bad in ("smg_kv_event_gaps_total", "smg_kv_event_parentless_blocks_total"):
                assert gateway.metric(bad) == 0

    def wait_until_known(self, gateway: Smg, *of: int) -> None:
        """Wait until the gateway has exactly the blocks usable on these nodes, by default on all
        nodes."""
        names = [self.nodes[number] for number in of or range(NODES)]
        held = [len(usable_pages(node)) for node in names]

        def known() -> list[float]:
            blocks = gateway.metrics("smg_kv_index_blocks")
            return [blocks.get(f'{{worker="grpc://{node.address}"}}', 0) for node in names]

        until(lambda: known() == held, lambda: (held, known()))

    def turn(self, gateway: Smg, session: Session, seed: int) -> int:
        """Run the session's next turn; return its cached tokens. Add the node that answered to the
        session's homes."""
        prompt = (*session.text, *random_prompt(150, seed))
        before = [prompts(node) for node in self.nodes]
        answer = gateway.generate("embedded", prompt, ANSWER)
        (home,) = (
            number for number, node in enumerate(self.nodes) if prompts(node) - before[number]
        )
        session.homes.append(home)
        session.text = (*prompt, *answer["output_ids"])
        found: int = answer["meta_info"]["cached_tokens"]
        self.wait_until_known(gateway, home)
        return found

    def all_turns(self, gateway: Smg, sessions: Sequence[Session], turn: int) -> list[int]:
        return [
            self.turn(gateway, session, 100 * number + turn)
            for number, session in enumerate(sessions)
        ]


def prompts(node: Node) -> int:
    """Return the number of requests answered by the node."""
    return node.stats().tree["leased_requests"]


def whole_pages(tokens: int) -> int:
    """Return the tokens in whole pages of a text without a forward of its last token."""
    return (tokens - 1) // PAGE_TOKENS * PAGE_TOKENS


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, ...]]:
    with ExitStack() as stack:
        started = [
            Node("serve", *flags(arena_mib=ARENA_MIB), "--gateway", "--cache-policy", "lru")
            for _ in range(NODES)
        ]
        yield tuple(stack.enter_context(running(node)) for node in started)


@pytest.fixture
def fleet(nodes: tuple[Node, ...], tmp_path: Path) -> Fleet:
    """Return a fleet of empty nodes."""
    for node in nodes:
        node.client.flush()
    return Fleet(nodes, tmp_path)


def sessions_of(seed: int, many: int) -> list[Session]:
    return [Session(random_prompt(200, seed + number)) for number in range(many)]


def test_a_session_stays_with_the_node_that_holds_it(fleet: Fleet) -> None:
    sessions = sessions_of(0, SESSIONS)
    with fleet.gateway() as gateway:
        for turn in range(TURNS):
            held = [whole_pages(len(session.text)) for session in sessions]
            found = fleet.all_turns(gateway, sessions, turn)
            homes = [session.homes for session in sessions]
            assert turn == 0 or all(a >= b for a, b in zip(found, held, strict=True)), str(
                (found, held, homes)
            )
    assert all(len(set(session.homes)) == 1 for session in sessions)
    # Misses spread: no node has all sessions.
    assert len({session.homes[0] for session in sessions}) > 1


def test_a_new_gateway_knows_by_snapshots_where_all_sessions_are(fleet: Fleet) -> None:
    sessions = sessions_of(1000, SESSIONS)
    with fleet.gateway() as gateway:
        fleet.all_turns(gateway, sessions, 0)
    held = [whole_pages(len(session.text)) for session in sessions]
    with fleet.gateway() as gateway:
        found = fleet.all_turns(gateway, sessions, 1)
    assert all(first == second for first, second in (session.homes for session in sessions))
    assert all(a >= b for a, b in zip(found, held, strict=True))


@pytest.mark.parametrize("how", ["flushed", pytest.param("evicted", marks=pytest.mark.slow)])
def test_what_a_node_lost_behind_the_gateway_s_back_draws_nothing_there(
    fleet: Fleet, how: str
) -> None:
    """Expect the turn at the other node. The gateway sent all turns to the first, so its own record
    names that node; only events name the other."""
    (session,) = sessions_of(2000, 1)
    with fleet.gateway() as gateway:
        for turn in range(TURNS):
            fleet.turn(gateway, session, turn)
        (home,) = set(session.homes)
        lose(fleet.nodes[home], session.text, how)
        other = (home + 1) % NODES
        asked(fleet.nodes[other], session.text, b"", 1).result()
        fleet.wait_until_known(gateway)
        held = whole_pages(len(session.text))
        assert fleet.turn(gateway, session, TURNS) >= held
        assert session.homes[-1] == other


def lose(node: Node, text: tuple[int, ...], how: str) -> None:
    """Flush the node, or fill it until no page of the text is usable there."""
    if how == "flushed":
        node.client.flush()
        return
    first, *_ = names_of_pages(text)
    for seed in range(20):
        # The prompt takes a quarter of the node's memory.
        asked(node, random_prompt(6000, seed), b"", 1).result()
        if first not in usable_pages(node):
            return
    raise AssertionError("not evicted")
