"""The rules of a session over several decode nodes, and the choice of its node.

The node of a session holds its cursor and the state at the last turn's end. The session stays there
until the node rejects it or is gone. It also moves if its tokens missed their target and another
node promises clearly better. Before it moves, it asks the old node to hand its state back to a
prefill node, for use by the next node. If this fails or is slow, the prompt is computed again.
Makes no call itself.

DecodeNodes holds addresses, no channels. Any thread may use it. Invariant: a failed node is not
selected for a while if there are others, so a thousand sessions do not each hit the failure.
"""

import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from grpc import StatusCode

from tasuki.proto import inference_pb2 as pb
from tasuki.routing.node_choice import DecodeLoad, choose_decode_node, is_worth_a_move
from tasuki.utils.signatures import Clock

from .answer import Answer
from .errors import ClientError, RetryPolicy
from .session_protocol import Call, Conversation, SessionLife, Steps

DRAWN = 2
"""Number of decode nodes compared for a session. The better of two is nearly as good as the best of
all, and the fleet gets few load queries."""
MOST_ASKED = 8
"""Largest number of nodes queried for one session if the first ones do not answer."""
_LEFT_ALONE_SECONDS = 5.0


class DecodeNodes:
    def __init__(self, addresses: Sequence[str], clock: Clock = time.monotonic) -> None:
        """Set up the choice of nodes. addresses: HOST:PORT of each node. Raises ValueError for
        none, or a repeated one."""
        if not addresses or len({*addresses}) != len(addresses):
            raise ValueError(f"name decode nodes, each once: not {list(addresses)}")
        self.addresses = tuple(addresses)
        self._clock = clock
        self._failed: dict[str, float] = {}
        self._placed: Counter[str] = Counter()
        self._lock = Lock()

    def in_turn(self, without: Collection[str]) -> list[str]:
        """Return at most MOST_ASKED nodes to try, in random order, recently failed ones last. Nodes
        in `without` are left out, unless no other node exists."""
        with self._lock:
            now = self._clock()
            failed = {node for node, at in self._failed.items() if now - at < _LEFT_ALONE_SECONDS}
        open_to = [node for node in self.addresses if node not in without] or [*self.addresses]
        random.shuffle(open_to)
        return sorted(open_to, key=failed.__contains__)[:MOST_ASKED]

    def failed(self, node: str) -> None:
        with self._lock:
            self._failed[node] = self._clock()

    def answered(self, node: str) -> None:
        with self._lock:
            self._failed.pop(node, None)

    def placed(self, node: str) -> int:
        """Return the number of this client's sessions on the node."""
        with self._lock:
            return self._placed[node]

    def moved(self, before: str | None, after: str | None) -> None:
        """Count a session's move between nodes. before: its old node; None for a new session.
        after: its new node; None for a closed session."""
        with self._lock:
            if before is not None:
                self._placed[before] -= 1
            if after is not None:
                self._placed[after] += 1


LOAD_SECONDS = 1.0
TTFT_HEADER = "x-slo-ttft-ms"
_SLOW = "slow"
_LEAST_JUDGED = 8
"""Least number of gaps between tokens for judging a node's pace."""
_REFUSALS = frozenset(
    {
        *("draining", "overloaded", "queue_timeout", "busy", "behind"),
        *("session_limit", "not_served_here"),
    }
)
"""Kinds of a node's rejections of a session. After such a rejection the session tries another node.
Rejections by the caller's own limits are not included."""
_GONE = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True)
class SessionTargets:
    """A session's latency targets in seconds; None: no target. first_token: time until a turn's
    first token; a node rejects the turn if it expects to miss the target (`x-slo-ttft-ms`).
    between_tokens: mean time between an answer's tokens. hand_back: longest wait of a move for the
    old node's state; 0: do not ask for it."""

    first_token: float | None = None
    between_tokens: float | None = None
    hand_back: float = 5.0


@dataclass(frozen=True)
class Move:
    """A session's move from one node to another. why: the rejection's kind or status, or `slow`.
    pulled_tokens: tokens fetched by a prefill node from the old node. It is 0 if the prefill node
    had as many tokens, if computing was faster, or if the number is hidden from the caller. None:
    no state was handed back."""

    left: str
    entered: str
    why: str
    pulled_tokens: int | None


class MovingSession(SessionLife):
    """A session able to move between nodes. Invariant: until it is closed, DecodeNodes counts it at
    exactly one node: its present node or its next one."""

    def __init__(
        self,
        conversation: Conversation,
        retry: RetryPolicy,
        nodes: DecodeNodes,
        targets: SessionTargets,
        id: str = "",
        node: str = "",
    ) -> None:
        """Set up a session. id, node: the session's present id and node; empty if it has none."""
        super().__init__(conversation, retry, id)
        self.node = node
        self.moves: list[Move] = []
        self._nodes = nodes
        self._targets = targets
        self._asked_at = ""
        """Address of the node asked last to open the session; empty before the first attempt."""
        self._refused: dict[str, str] = {}
        """Reasons of rejections of the present call, by the rejecting node."""
        self._slow = False
        self._handed_back: dict[str, int | None] = {}
        """Number of tokens pulled from the old node, by the session's id on that node; None: no
        state was handed back."""
        if node:
            self._ask_at(node)
        if targets.first_token is not None:
            self.metadata = ((TTFT_HEADER, f"{1000 * targets.first_token:g}"),)

    def close(self) -> Steps[None]:
        if self._asked_at and not self._closed:
            self._nodes.moved(self._asked_at, None)
        yield from super().close()

    def _ask_at(self, node: str) -> None:
        self._nodes.moved(self._asked_at or None, node)
        self._asked_at = node

    def turn_finished(self, answer: Answer) -> None:
        super().turn_finished(answer)
        self._taken()
        self._slow = self._was_slow(answer)

    def _was_slow(self, answer: Answer) -> bool:
        target, usage = self._targets.between_tokens, answer.usage
        gaps = usage.completion_tokens - 1
        if target is None or gaps < _LEAST_JUDGED:
            return False
        return (usage.seconds - usage.time_to_first_token) / gaps > target

    def _twin(self, conversation: Conversation, id: str) -> SessionLife:
        return MovingSession(conversation, self.retry, self._nodes, self._targets, id, self.node)

    def _taken(self) -> None:
        self._refused.clear()

    def _goes_elsewhere(self, error: ClientError) -> bool:
        gone = error.kind is None and error.status in _GONE
        if self._closed or not (gone or error.kind in _REFUSALS):
            return False
        refused = self._asked_at
        if gone:
            self._nodes.failed(refused)
        self._lost = True
        self._refused[refused] = error.kind or error.status.name.lower()
        if all(node in self._refused for node in self._nodes.addresses):
            # All were tried: a retry after a pause begins with the others.
            self._refused = {refused: self._refused[refused]}
            return False
        return True

    def _where_to_open(self) -> Steps[str]:
        if self.node and self.node not in self._refused:
            target = self.node
        else:
            target = yield from self._place()
        self._ask_at(target)
        if self.id and target != self.node and self.id not in self._handed_back:
            # Only once, even if several nodes are tried after it.
            self._handed_back = {self.id: (yield from self._hand_back())}
        return target

    def _entered(self, left: str) -> None:
        if left == self.node:
            return
        if left:
            (pulled,) = self._handed_back.values()
            self.moves.append(Move(left, self.node, self._refused.get(left, _SLOW), pulled))
        self._handed_back = {}

    def _place(self) -> Steps[str]:
        """Return the node for the session: the better of two answering nodes. If none answers,
        return the first, for its failure to be raised."""
        loads: dict[str, DecodeLoad] = {}
        in_turn = self._nodes.in_turn(self._refused)
        for node in in_turn:
            load = yield from self._load(node)
            if load is not None:
                loads[node] = load
            if len(loads) == DRAWN:
                break
        # Count again now, because other sessions were placed while this one asked.
        counted = {
            node: replace(load, placed=self._nodes.placed(node)) for node, load in loads.items()
        }
        return choose_decode_node(counted) if counted else in_turn[0]

    def _load(self, node: str) -> Steps[DecodeLoad | None]:
        try:
            said = yield Call("Load", pb.SessionLoadRequest(), node, LOAD_SECONDS)
        except ClientError as error:
            if error.status in _GONE:
                self._nodes.failed(node)
            return None
        self._nodes.answered(node)
        step = said.step_seconds if said.HasField("step_seconds") else None
        return DecodeLoad(step, said.busy, said.free_kv, said.draining)

    def _hand_back(self) -> Steps[int | None]:
        if not self._targets.hand_back:
            return None
        request = pb.SessionHandBackRequest(session_id=self.id)
        try:
            reply = yield Call("HandBack", request, self.node, self._targets.hand_back)
        except ClientError:
            # The state on the node is lost, and the next node computes it.
            return None
        return int(reply.pulled.tokens)

    def _look_around(self) -> Steps[None]:
        """After a slow answer, compare other nodes with the session's node. If another node
        promises better, mark the session to move."""
        target = self._targets.between_tokens
        busy = self._turn is not None or self._lost or self._closed
        if not self._slow or target is None or busy:
            return
        self._slow = False
        here = yield from self._load(self.node)
        others = [node for node in self._nodes.in_turn({self.node}) if node != self.node]
        for node in others[:DRAWN]:
            there = yield from self._load(node)
            if there is None:
                continue
            if here is None or is_worth_a_move(here, there, target):
                self._refused[self.node] = _SLOW
                self._lost = True
                return


def moves_of(life: SessionLife) -> tuple[Move, ...]:
    return tuple(life.moves) if isinstance(life, MovingSession) else ()
