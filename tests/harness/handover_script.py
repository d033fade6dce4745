"""Plays scripts of transfers: both nodes' halves over real gRPC and a loopback transport. A script
sends the engines' messages.

A command with a message's name is that message of an engine: `HandoverCancelled 5`. Other commands
are methods of HandoverWorld or ManualPeer, or the stage to reach in a transfer, `grant 5`. Messages
to an engine are shown as `decode 5: GrantWanted -> RemoteReady(42)`. Messages of a pull are shown
as `prefill 5 pull: ...`, and answers to the manual peer as `peer: ...`.
"""

import asyncio
import contextlib
import inspect
import socket
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import grpc

from tasuki.engine import messages as m
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.sending.sender import SenderSettings
from tasuki.transfer.transports.loopback import Fault, Faults
from tests.harness.handover_nodes import (
    EXACT,
    FP8,
    HIT,
    LIMITS,
    SERVICE_LIMITS,
    Nodes,
    grant_of,
    nodes,
    other_weights,
    pull_of,
    source_of,
    transfer_of,
    wanted,
)
from tests.harness.interaction import Look, RealTime
from tests.harness.manual_peer import ManualPeer

_PULLS = (m.PullAsked, m.PullEnd, m.PullCommitted, m.PullLost, m.PullFenced)
_STAGES = ("reserve", "accept", "grant", "compute", "hand-over", "pull")
"""Stages of a transfer, also methods of Nodes, each called with transfer ids."""
_PLACES = {
    "client.trace": "client._traceparent",
    "client.events": "client._transfers.*._side.step",
    "client.stream": "client._transfers.*._stream._outbox.take",
    "client.fence": "client._shared.breaker.end",
    "client.pull.events": "client._pulls.*._side.step",
    "service.events": "service._transfers.*._side.step",
    "service.pull.events": "service._pulls.*._side.step",
}
"""Short names of methods a script may break. It names other methods by their attribute path."""
_TO_THE_SERVICE = ("Prefill", "PullWanted")


def _shown(message: m.Inbox) -> str:
    name = type(message).__name__
    match message:
        case m.HandoverFailed(reason=reason, cause=cause):
            elsewhere = ", elsewhere" if message.elsewhere else ""
            return f"{name}({cause.name}{elsewhere}: {reason})"
        case m.PrefillEnd(given_up=m.LossCause() as cause):
            return f"{name}({cause.name})"
        case m.RemoteReady(token=token):
            return f"{name}({token})"
        case m.PullAsked(tokens=tokens, first_page=first):
            return f"{name}({tokens} tokens from page {first})"
    return name


def _faults(text: str) -> Faults:
    """Return the faults described by text like `hold@2,4`: the fault, and the numbers of the
    affected posts."""
    name, _, places = text.partition("@")
    struck = [int(place) for place in places.split(",") if place]
    return lambda posted: Fault[name.replace("-", "_").upper()] if posted in struck else Fault.NONE


def _changed(settings: Any, path: list[str], value: float) -> Any:
    """Return the settings with one field changed. path: the field's name, or the names down to a
    nested field."""
    name, *rest = path
    return replace(
        settings, **{name: _changed(getattr(settings, name), rest, value) if rest else value}
    )


def _found(root: Any, path: str) -> Any:
    """Return the object at a path of attribute names; `*` is the only element of a collection."""
    for name in path.split("."):
        (root,) = root if name == "*" else (getattr(root, name),)
    return root


async def _ended(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


async def _until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


class HandoverWorld(RealTime):
    """Two connected nodes, with a script's commands as methods. The command `nodes` makes them with
    settings; any other command makes them with default ones."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self.both: Nodes
        self.peer: ManualPeer
        self._stack = stack
        self._started = False
        self._drains = True
        self._read = {"decode": 0, "prefill": 0}
        self._begun: dict[str, float] = {}
        self._link: Any = None
        self._channel: grpc.aio.Channel

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> Look | None:
        if command != "nodes" and not self._started:
            await self.nodes()
        self._begun[command] = time.monotonic()
        if command[0].isupper():
            self._deliver(command, *words, **named)
            return None
        name = command.replace("-", "_")
        if command in _STAGES:
            for number in words:
                await _ended(getattr(self.both, name)(int(number)))
            return None
        owner = self.peer if self._started and hasattr(self.peer, name) else self
        method = getattr(owner, name)
        options = {name.replace("-", "_"): value for name, value in named.items()}
        look: Look | None = await _ended(method(*words, **options))
        return look

    def came(self) -> dict[str, list[str]]:
        tracks: dict[str, list[str]] = {}
        if self._started:
            tracks["peer"] = list(self.peer.answers)
            for node, inbound in self._inbound.items():
                for message in inbound.messages[self._read[node] :]:
                    if not isinstance(message, m.PeersChanged | m.ReadUsable):
                        of_pull = " pull" if isinstance(message, _PULLS) else ""
                        track = f"{node} {transfer_of(message)}{of_pull}"
                        tracks.setdefault(track, []).append(_shown(message))
        return tracks

    def taken(self) -> None:
        self._read = {node: len(inbound.messages) for node, inbound in self._inbound.items()}
        self.peer.answers.clear()

    async def end(self) -> None:
        """Wait until no transfer is left, unless the script made one stay."""
        if self._started and self._drains:
            await self.both.quiet()

    @property
    def _inbound(self) -> dict[str, Any]:
        return {"decode": self.both.decode, "prefill": self.both.prefill}

    # The two nodes

    async def nodes(
        self,
        fault: str = "none",
        back_fault: str = "none",
        wire: str = "exact",
        contract: str = "same",
        **settings: str,
    ) -> None:
        """Start both nodes. fault: faults of a transfer's posts. back_fault: faults of a pull's
        posts. settings: settings of `decode`, `prefill` and `sender`, with dots."""
        parts: dict[str, Any] = {
            "decode": LIMITS,
            "prefill": SERVICE_LIMITS,
            "sender": SenderSettings(lease_seconds=3.0),
        }
        for path, value in settings.items():
            part, *names = path.split(".")
            parts[part] = _changed(parts[part], names, float(value))
        self.both = await self._stack.enter_async_context(
            nodes(
                faults=_faults(fault),
                sender=parts["sender"],
                limits=parts["decode"],
                decode_contract=other_weights if contract == "other" else lambda same: same,
                back_faults=_faults(back_fault),
                precision={"exact": EXACT, "fp8": FP8}[wire],
                service_limits=parts["prefill"],
            )
        )
        self._started = True
        self.peer = ManualPeer(self.both, self._stack)
        if contract == "same":
            await self.both.connected()
        self._link = self.both.client.links[0].connection

    async def stop_server(self) -> None:
        await self.both.server.stop(0)

    async def stop_service(self) -> None:
        await self.both.service.stop()

    def lose_link(self) -> None:
        self._link.lost.set()

    async def new_link(self) -> None:
        """Wait for a new connection between the nodes, in place of the earlier one."""
        link = self.both.client.links[0]
        await _until(lambda: link.connection not in (None, self._link))
        self._link = link.connection

    def link(self) -> Look:
        def look() -> list[str]:
            link = self.both.client.links[0]
            refused = [f"{d.field}: {d.ours}, not {d.theirs}" for d in link.refused]
            return [f"link {'up' if link.connection is not None else 'down'}", *refused]

        return look

    def show(self, path: str) -> Look:
        """Show the current value at an attribute path of the nodes."""
        return lambda: [f"{path}: {_found(self.both, path)}"]

    # Transfers

    def _deliver(self, name: str, number: str, *words: str, **ids: str) -> None:
        half: Any = self.both.service if name.startswith(_TO_THE_SERVICE) else self.both.client
        half.deliver(self._message(name, m.TransferId(int(number)), words, ids))

    def _message(
        self, name: str, transfer_id: m.TransferId, words: tuple[str, ...], ids: dict[str, str]
    ) -> Any:
        """Return the engine's message `name` for a transfer. ids: replace the granted page ids and
        slot."""
        other: dict[str, Any] = {key: int(value) for key, value in ids.items() if key != "pages"}
        if "pages" in ids:
            other["pages"] = tuple(map(int, ids["pages"].split(",")))
        pair = self.both.pair
        match name:
            case "HandoverWanted":
                return wanted(transfer_id)
            case "HandoverGranted":
                return m.HandoverGranted(
                    replace(grant_of(transfer_id, pair.target.layout), **other)
                )
            case "PullWanted":
                return m.PullWanted(replace(pull_of(transfer_id, pair.source.layout), **other))
            case "PullPinned":
                return m.PullPinned(source_of(transfer_id, pair.target.layout))
            case "PullRefused":
                return m.PullRefused(transfer_id, *words)
            case "PrefillQueue":
                # Transfers unknown to all nodes are before it.
                return m.PrefillQueue((*([m.TransferId(0)] * int(words[0])), transfer_id))
            case "PrefillRefused":
                kind, text = words
                return m.PrefillRefused(transfer_id, m.RequestError(m.ErrorKind[kind], text))
            case "PrefillToken":
                return m.PrefillToken(transfer_id, 42, -0.5, 1.25, HIT)
        return getattr(m, name)(transfer_id)

    async def neighbours_landed(self) -> None:
        await _until(lambda: self._link.arrived)

    # Time, and the wire

    def at_least(self, seconds: str, since: str, kind: str) -> None:
        """Assert a minimum of seconds from a command's start to the first message of this kind. A
        lease cannot end earlier."""
        came = min(node.came_at(getattr(m, kind)) for node in self._inbound.values())
        assert came - self._begun[since] > float(seconds), f"{kind} came too soon after {since}"

    async def held(self) -> None:
        """Wait until a post is held by a fault of the transport."""
        await _until(lambda: self.both.pair.fabric.held)

    def let_go(self) -> None:
        self.both.pair.fabric.let_go()

    # Defects

    def _method(self, place: str) -> tuple[Any, str, Any]:
        """Return the owner, the name and the method at a place. place: a short name or an attribute
        path."""
        path, _, name = _PLACES.get(place, place).rpartition(".")
        owner = _found(self.both, path)
        return owner, name, getattr(owner, name)

    def breaks(self, place: str, once: str = "") -> None:
        owner, name, whole = self._method(place)

        def broken(*_: object) -> None:
            if once:
                setattr(owner, name, whole)
            raise RuntimeError(f"{place} is broken")

        setattr(owner, name, broken)

    def hangs(self, place: str) -> None:
        """Make the method at a place hang until the script ends."""
        owner, name, whole = self._method(place)
        hanging: dict[str, Callable[..., object]] = {
            "abort": lambda _: Future(),
            "take": asyncio.Event().wait,
        }
        self._stack.callback(setattr, owner, name, whole)
        setattr(owner, name, hanging[name])
        self._drains = self._drains and name != "abort"

    async def speak_over(self, channel: str) -> None:
        """Make new transfers use a closed channel, or one to a deaf server: the kernel accepts
        connections but no process answers. A call's metadata is then never sent."""
        address = f"127.0.0.1:{self.both.port}"
        if channel == "deaf":
            server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"127.0.0.1:{server.getsockname()[1]}"
        made = grpc.aio.insecure_channel(address)
        self._channel = await self._stack.enter_async_context(made)
        if channel == "closed":
            await made.close()
        self._link.stub = handover_pb2_grpc.HandoverStub(made)

    async def close_channel(self) -> None:
        await self._channel.close()


@contextlib.asynccontextmanager
async def handover() -> AsyncIterator[HandoverWorld]:
    async with contextlib.AsyncExitStack() as stack:
        yield HandoverWorld(stack)
