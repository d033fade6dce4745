"""Desk of an ending prefill node: on request it gives its states to decode nodes, to pass them on.

Owns the set of asking connections, and the connection given each state until its outcome is known.
The engine decides the target of each state. Thread rule: the event loop.

Invariants: a state given to a connection counts as lost when the connection is lost. Every wait for
the engine is bounded. Leaving ends once no connection asks for or accepts states, so a node's end
waits for no peer.
"""

import asyncio
from collections.abc import Callable, Collection
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.proto import handover_pb2 as pb

_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 2.0
_NO_NODE: frozenset[str] = frozenset()


class LeavingDesk:
    def __init__(self, post: m.Post, connected: Callable[[], Collection[str]]) -> None:
        """post: sends a message to the engine. connected: returns the names of the live
        connections."""
        self._post = post
        self._connected = connected
        self._queries = count(1)
        self._waiting: dict[int, asyncio.Future[m.LeftState]] = {}
        self._given: dict[int, str] = {}
        """Connection of the decode node given each state, by the state's number, until the outcome
        is known."""
        self._asking = _NO_NODE
        self._declining = _NO_NODE
        self.leaves = False
        """True if heartbeats report this node as ending, with states to pass on."""

    def begin(self) -> None:
        """Begin to give this ending node's states away, to decode nodes asking for them."""
        self.leaves = True
        self._look()

    def _look(self) -> None:
        for number in [n for n, to in self._given.items() if to not in self._connected()]:
            self._post(m.LeftTakenOver(number, m.DrainTargetOutcome.LOST))
            del self._given[number]
        self._asking &= frozenset(self._connected())
        if not self._given and self._declining.issuperset(self._connected()):
            self._post(m.EndLeaving())
        else:
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def answered(self, message: m.LeftState) -> None:
        """Handle the engine's answer to a question for a state. A state counts as lost if its
        question waits no longer."""
        waiting = self._waiting.pop(message.query_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        elif message.state is not None:
            self._post(m.LeftTakenOver(message.state.number, m.DrainTargetOutcome.LOST))

    async def take_over(self, request: pb.TakeOverRequest) -> pb.TakeOverResponse:
        """Answer a decode node's question for a state to pass on. The answer is `over` if this node
        passes none on. It is empty if the peer declines or the engine is late. REQUIRES: its
        connection is live. Raises PeerInvalid."""
        peer = request.connection_id
        if request.HasField("done"):
            self._done(peer, wire.TAKEN_OVER.from_wire(request.done))
        if not self.leaves:
            return pb.TakeOverResponse(over=True)
        if request.declines:
            self._declining |= {peer}
            return pb.TakeOverResponse()
        self._asking |= {peer}
        query = next(self._queries)
        waiting = self._waiting[query] = asyncio.get_running_loop().create_future()
        self._post(m.LeftWanted(query, peer, self._asking))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                left = await waiting
        except TimeoutError:
            return pb.TakeOverResponse()
        finally:
            self._waiting.pop(query, None)
        if left.state is not None:
            self._given[left.state.number] = peer
        return wire.left_state(left)

    def _done(self, peer: str, done: m.LeftTakenOver) -> None:
        """Report a state's outcome to the engine, if `peer` was given this state and no outcome is
        known yet."""
        if self._given.get(done.number) == peer:
            del self._given[done.number]
            self._post(done)
