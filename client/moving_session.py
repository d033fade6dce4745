"""The rules of a session that several decode nodes may hold: where it begins, why it leaves, and
what it takes along.

It stays where it is, for the cursor and the turn's end are there, until the node refuses it or is
gone, or until its tokens came later than their target and another node promises clearly better.
Before it goes it asks the node that it leaves to hand back what it holds, so that the next one's
prefill node has it; where that fails, or takes long, the prompt is computed again. Makes no call
itself.
"""

from dataclasses import dataclass, replace

from grpc import StatusCode

from tasuki.proto import inference_pb2 as pb
from tasuki.routing.node_choice import DecodeLoad, choose_decode_node, is_worth_a_move

from .answer import Answer
from .decode_nodes import DRAWN, DecodeNodes
from .errors import ClientError
from .retry import RetryPolicy
from .session_protocol import Call, Conversation, SessionLife, Steps

LOAD_SECONDS = 1.0
TTFT_HEADER = "x-slo-ttft-ms"
_SLOW = "slow"
_LEAST_JUDGED = 8
"""Tokens of an answer whose pace says something of the node."""
_REFUSALS = frozenset(
    {
        *("draining", "overloaded", "queue_timeout", "busy", "behind"),
        *("session_limit", "not_served_here"),
    }
)
"""With which a node leaves a session to others; those of the caller's own limits are no reason."""
_GONE = frozenset({StatusCode.UNAVAILABLE, StatusCode.CANCELLED, StatusCode.DEADLINE_EXCEEDED})


@dataclass(frozen=True)
class SessionTargets:
    """Seconds; None: any. first_token: until a turn's first token; a node that expects to miss it
    refuses the turn (`x-slo-ttft-ms`). between_tokens: of an answer, in the mean. hand_back: that a
    move may wait for what the node it leaves holds; 0: nothing is asked for."""

    first_token: float | None = None
    between_tokens: float | None = None
    hand_back: float = 5.0


@dataclass(frozen=True)
class Move:
    """Of a session from one node to another. why: the refusal's kind or status, or `slow`.
    pulled_tokens: that a prefill node fetched from the node it left; 0 where it had as much, or may
    not be known; None: nothing was handed back."""

    left: str
    entered: str
    why: str
    pulled_tokens: int | None


class MovingSession(SessionLife):
    """Invariant: its nodes count it at one of them, where it stands or is about to, until it is
    closed."""

    def __init__(
        self,
        conversation: Conversation,
        retry: RetryPolicy,
        nodes: DecodeNodes,
        targets: SessionTargets,
        id: str = "",
        node: str = "",
    ) -> None:
        """id, node: where it stands already, if it does."""
        super().__init__(conversation, retry, id)
        self.node = node
        self.moves: list[Move] = []
        self._nodes = nodes
        self._targets = targets
        self._asked_at = ""
        """Where it is opened, or was to be."""
        self._refused: dict[str, str] = {}
        """Nodes that refused what is being asked, and why."""
        self._slow = False
        self._handed_back: dict[str, int | None] = {}
        """By the session's id on the node that it leaves, what was pulled from there."""
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
            # All were tried; who tries again after a pause begins with the others.
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
            # Once, though several nodes may be tried after it.
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
        """The better of two that answer; where none does, the first: its failure is the one to
        raise."""
        loads: dict[str, DecodeLoad] = {}
        in_turn = self._nodes.in_turn(self._refused)
        for node in in_turn:
            load = yield from self._load(node)
            if load is not None:
                loads[node] = load
            if len(loads) == DRAWN:
                break
        # Now, since others were placed while this one asked.
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
            # What it holds is lost to the next node, which computes it.
            return None
        return int(reply.pulled.tokens)

    def _look_around(self) -> Steps[None]:
        """Leave a node whose last answer was slow for one that promises better."""
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
