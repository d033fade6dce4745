"""A simulated fleet of nodes exporting the product's real metrics.

Traffic is random by a seed and follows the curve of a day. Virtual time passes as fast as it can be
computed.
"""

import asyncio
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from tasuki.cli.fleet.serving import FleetHandlers
from tasuki.dashboard.fleet.fleet import Fleet
from tasuki.dashboard.fleet.samples import WANTED, read_samples
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import NodeReport
from tasuki.dashboard.page_files import load_page
from tasuki.engine import messages as m
from tasuki.engine.messages import LifeMark, RequestPhase
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.auth.callers import LOOPBACK_ONLY, Access
from tasuki.server.http.server import HttpServer, start_http_server
from tasuki.transfer.control.link_status import PrefillNodeState, PrefillNodeStatus
from tests.harness.waiting import HANG_SECONDS

MODEL = "qwen3.5-35b-a3b"
CALLERS = ("agents", "batch", "chat", "evals", "search")
_PROMPT = np.zeros(1, np.int32)
_SLAB_BYTES = 38 * 2**20
_TREE = (
    *("nodes", "ghost_nodes", "checkpoints", "leases", "cursors", "evicted_pages"),
    *("evicted_checkpoints", "leased_requests", "prompt_tokens", "usable_tokens"),
)


@dataclass
class ImaginedNode:
    """A simulated node. load: requests a second at the day's peak. slowness: factor on its
    latencies, for the first token and the others. links: connection states of prefill nodes by
    name."""

    name: str
    role: str
    started_at: float
    load: float = 2.0
    slowness: float = 1.0
    links: dict[str, PrefillNodeState] = field(default_factory=dict)
    exposition: Exposition = field(default_factory=Exposition)
    tree: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TREE, 0))
    lost: dict[str, int] = field(default_factory=dict)
    tiers: tuple[m.TierReport, ...] = ()
    ended: int = 0
    waiting: int = 0
    running: int = 0

    def live(self, seconds: float, height: float, chance: random.Random) -> None:
        """Simulate `seconds` of traffic. height: the traffic as a share of the day's peak, 0 to 1.
        chance: source of randomness."""
        expected = self.load * seconds * height
        for _ in range(int(expected + chance.random())):
            if self.role == "prefill":
                self._prefill(chance)
            else:
                self._answer(chance)
        self.running = round(10 * self.load * height * chance.uniform(0.7, 1.2))
        self.waiting = max(0, round((self.slowness - 0.8) * 6 * height * chance.random()))

    def _answer(self, chance: random.Random) -> None:
        self.ended += 1
        request = m.RequestId(f"{self.name}-{self.ended}")
        caller = chance.choices(CALLERS, (8, 2, 5, 1, 3))[0]
        hit = _hit(chance)
        transfer, peer = None, "local"
        alive = [name for name, state in self.links.items() if state is PrefillNodeState.CONNECTED]
        if alive:
            peer = chance.choice(alive)
            exposed = chance.lognormvariate(-7.5, 0.8)
            transfer = m.TransferReport(hit.prompt_tokens * 20480, 20, 8, 0.08, exposed)
        tokens = 1 + int(chance.lognormvariate(5.2, 0.7))
        slow = self.slowness * (3.0 if caller == "evals" else 1.0)
        first = slow * chance.lognormvariate(-1.4, 0.6)
        whole = first + (tokens - 1) * slow * chance.lognormvariate(-4.3, 0.25)
        usage = m.Usage(hit.prompt_tokens, tokens, hit, transfer, peer, False, first, whole)
        life = (
            LifeMark(RequestPhase.PREFILLING, first / 3),
            LifeMark(RequestPhase.DECODING, first),
        )
        self.exposition.observe(m.Submit(request, _PROMPT, SamplingParams(), caller=caller))
        self.exposition.observe(m.Finished(request, m.FinishReason.STOP, usage, life))
        self.exposition.count_tokens(tokens)

    def _prefill(self, chance: random.Random) -> None:
        hit = _hit(chance)
        self.tree["prompt_tokens"] += hit.prompt_tokens
        self.tree["usable_tokens"] += hit.usable_tokens
        for cause, tokens in hit.causes.items():
            self.lost[cause] = self.lost.get(cause, 0) + tokens
        self.tiers = tuple(_moved(tier, hit.usable_tokens) for tier in self.tiers)
        wait = self.slowness * chance.lognormvariate(-3.0, 0.8)
        life = (
            LifeMark(RequestPhase.PREFILLING, wait),
            LifeMark(RequestPhase.HANDING_OVER, 3 * wait),
            LifeMark(RequestPhase.FINISHED, 3 * wait),
        )
        self.exposition.observe(
            m.TransferEnded(m.TransferId(0), hit.prompt_tokens, hit, True, life)
        )

    def text(self, chance: random.Random) -> str:
        """Return the node's reply to GET /metrics."""
        pages, slots = (_pool(chance, whole, self.load) for whole in (3000, 430))
        stats = m.StatsReply(
            query_id=0,
            pages=pages,
            slots=slots,
            slabs={"free": 12, "pages": 700, "slots": 150},
            slab_bytes=_SLAB_BYTES,
            each_bytes={"page": _SLAB_BYTES // 7, "slot": _SLAB_BYTES},
            tiers=self.tiers,
            tree=self.tree,
            lost=self.lost,
            requests={
                RequestPhase.WAITING: self.waiting,
                RequestPhase.DECODING: self.running,
            },
            policy="value",
            policies={"value": 1.0},
        )
        links = tuple(
            PrefillNodeStatus(f"10.0.0.{number}:50052", name, state)
            for number, (name, state) in enumerate(self.links.items(), 1)
        )
        about = {
            "node": self.name,
            "role": self.role,
            "model": MODEL,
            "version": "0.1.0",
            "started_at": str(self.started_at),
        }
        text = self.exposition.text(NodeReport(stats, links=links, about=about)).decode()
        return text + (self._choices() if self.links else "")

    def _choices(self) -> str:
        """Return the metrics of a decode node's choices of prefill nodes."""
        return (
            f'tasuki_prefill_choices_total{{reason="cost"}} {self.ended}\n'
            f"tasuki_prefill_choice_regret_seconds_total {0.02 * self.ended}\n"
            f"tasuki_prefill_choice_expected_tokens_total {1000 * self.ended}\n"
            f"tasuki_prefill_choice_found_tokens_total {970 * self.ended}\n"
        )


def tiers_of(*sizes: tuple[str, int]) -> tuple[m.TierReport, ...]:
    """Return reports of memory tiers with the given names and sizes in GiB, each with a little free
    memory."""
    return tuple(
        m.TierReport(
            name,
            _SLAB_BYTES,
            {"free": slabs // 9, "total": slabs},
            {"pages": 5 * slabs, "slots": slabs // 20},
            {"done": 0, "mismatch": 0},
            {"done": 0, "abandoned": 0},
            {"loaded": 0, "written": 0},
            {"loads": 0, "writes": 0, "waiting_writes": 0},
            {"pages": slabs // 3, "slots": slabs // 90},
        )
        for name, slabs in ((name, gib * 2**30 // _SLAB_BYTES) for name, gib in sizes)
    )


def _moved(tier: m.TierReport, usable: int) -> m.TierReport:
    """Return the tier's report after one more prompt, with possibly a part loaded from the tier."""
    chance = random.Random(f"{tier.name} {usable}")
    loaded = int(usable * 20480 * max(0.0, chance.gauss(-0.2, 0.5)))
    written = int(chance.lognormvariate(16.5, 0.5))
    return replace(
        tier,
        loads={**tier.loads, "done": tier.loads["done"] + bool(loaded)},
        writes={**tier.writes, "done": tier.writes["done"] + 1},
        bytes={
            "loaded": tier.bytes["loaded"] + loaded,
            "written": tier.bytes["written"] + written,
        },
    )


def _hit(chance: random.Random) -> m.HitBreakdown:
    prompt = 400 + int(chance.lognormvariate(9.6, 0.9))
    new = int(prompt * chance.uniform(0.02, 0.16))
    evicted = int(prompt * max(0.0, chance.gauss(0.02, 0.05)))
    shallow = int(prompt * chance.uniform(0.0, 0.03))
    causes = {"new": new, "checkpoint_evicted": evicted, "never_checkpointed": shallow}
    usable = max(0, prompt - sum(causes.values()))
    causes["new"] += prompt - usable - sum(causes.values())
    return m.HitBreakdown(prompt, usable, usable, causes, "turn_end")


def _pool(chance: random.Random, whole: int, load: float) -> dict[str, int]:
    working = int(whole * min(0.3, 0.06 * load) * chance.uniform(0.8, 1.2))
    tree = int(whole * chance.uniform(0.55, 0.62))
    granted = whole // 60
    return {
        "working": working,
        "tree": tree,
        "pinned": tree // 4,
        "granted": granted,
        "quarantined": 0,
        "free": whole - working - tree - granted,
        "total": whole,
    }


def imagined_nodes(prefill: int, decode: int, now: float) -> list[ImaginedNode]:
    """Return simulated nodes. prefill, decode: numbers of nodes. now: seconds since 1970. The last
    decode node is slow and cannot reach one prefill node."""
    names = [f"prefill-{number}" for number in range(1, prefill + 1)]
    up = PrefillNodeState.CONNECTED
    senders = [
        ImaginedNode(
            name,
            "prefill",
            now - 86400 * 3.2 + 60 * number,
            3.0,
            tiers=tiers_of(("host", 256), ("disk", 1800)),
        )
        for number, name in enumerate(names)
    ]
    takers = [
        ImaginedNode(
            f"decode-{number}",
            "decode",
            now - 86400 * 3.1 + 60 * number,
            1.2 + 0.3 * (number % 5),
            links=dict.fromkeys(names, up),
        )
        for number in range(1, decode + 1)
    ]
    if takers and names:
        takers[-1].slowness = 6.0
        takers[-1].links[names[-1]] = PrefillNodeState.LOST
    return [*senders, *takers]


def address_of(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250 + 1}:8000"


def lived(
    nodes: list[ImaginedNode], now: float, seconds: float = 1800.0, every: float = 5.0
) -> Fleet:
    """Simulate the nodes for the last `seconds` before `now`, polled every `every` seconds, and
    return the fleet. One more node is dead."""
    chance = random.Random(7)
    fleet = Fleet()
    fleet.set_members(address_of(number) for number in range(len(nodes) + 1))
    rounds = int(seconds / every)
    for turn in range(rounds + 1):
        at = now - seconds + turn * every
        height = 0.7 + 0.25 * math.sin(at / 400) + 0.1 * chance.random()
        for number, node in enumerate(nodes):
            node.live(every, height, chance)
            samples = read_samples(node.text(chance), WANTED)
            fleet.answered(address_of(number), at, at, samples)
        if turn > rounds // 2:
            fleet.failed(address_of(len(nodes)), at, "connection refused")
        fleet.mark_time(at)
    return fleet


@contextmanager
def serving(fleet: Fleet, access: Access = LOOPBACK_ONLY) -> Iterator[str]:
    """Serve the fleet's web page, and yield its HOST:PORT."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> HttpServer:
        routes = FleetHandlers(fleet, load_page(), "http").routes()
        return await start_http_server("127.0.0.1:0", routes, lambda: None, access)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(HANG_SECONDS)
    try:
        yield server.address
    finally:
        asyncio.run_coroutine_threadsafe(server.drain(), loop).result(HANG_SECONDS)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(HANG_SECONDS)
        loop.close()
