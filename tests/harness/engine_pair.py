"""A prefill and a decode engine in one process, driven by hand. The engines, the sender and the
receiver are real. The test chooses the rate of the loopback transport."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any

import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_early_start
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.handover.early_start import EarlyStart
from tasuki.engine.messages.picture_wire import runs_from_wire, runs_to_wire
from tasuki.engine.request import Active
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.data_plane import DataPlane
from tasuki.transfer.errors import TransferError
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import TransferSent
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.settings import WireSettings
from tasuki.transfer.transports.loopback import Faults, LoopbackFabric, LoopbackTransport, no_faults
from tests.harness.engines import Lone
from tests.harness.loopback_pair import Ends
from tests.harness.waiting import HANG_SECONDS

PEER = "peer"
LONG = 10.0
"""Remaining transfer seconds, longer than any step, so an early step begins."""
Head = Callable[[], torch.Tensor]


def is_early_step() -> bool:
    """Return True if the calling thread computes an early step (a decode step before the transfer's
    end)."""
    return threading.current_thread().name.startswith("tasuki-early-step")


def with_early_head(parts: EngineParts, early: Callable[[Head], torch.Tensor]) -> EngineParts:
    """Return engine parts with another output head in early steps. early: function given the plain
    head, returning its logits."""

    class EarlyHead(Qwen35Model):
        def head(self, *args: Any) -> torch.Tensor:
            plain = partial(super().head, *args)
            return early(plain) if is_early_step() else plain()

    return replace(parts, model=EarlyHead(parts.model.config, parts.model.weights))


def broken_head(plain: Head) -> torch.Tensor:
    raise RuntimeError("broken on purpose")


class StoppedHead:
    """An output head blocking an early step until it is released."""

    def __init__(self) -> None:
        self.inside, self.go = threading.Event(), threading.Event()

    def __call__(self, plain: Head) -> torch.Tensor:
        self.inside.set()
        assert self.go.wait(HANG_SECONDS)
        return plain()


@dataclass
class OneTransfer:
    """A running transfer: the request's id, the transfer request, and the first token."""

    request: str
    transfer_request: m.TransferRequest
    token: m.PrefillToken


@dataclass
class EnginePair:
    prefill: Lone
    decode: Lone
    sender: Sender
    receiver: Receiver
    link: LoopbackTransport
    fabric: LoopbackFabric
    early: EarlyStart
    said_by_steps: "SimpleQueue[m.EarlyStepEnded]"
    ends: Ends = field(default_factory=Ends)

    def hand_over(self, submit: m.Submit) -> OneTransfer:
        """Run a transfer up to the first token at the prefill engine. Layer chunks may still be in
        flight."""
        transfer_request = self._start(submit)
        self.prefill.settle()
        return OneTransfer(
            submit.request_id, transfer_request, self._last(self.prefill, m.PrefillToken)
        )

    def stop_at(self, submit: m.Submit, tokens: int) -> None:
        """Run a transfer until `tokens` tokens of its prompt are computed, then abort it."""
        number = self._start(submit).transfer_id
        (request,) = self.prefill.engine._handover.requests
        until = time.monotonic() + HANG_SECONDS
        while not (
            isinstance(request.state, Active) and request.state.progress.num_computed >= tokens
        ):
            assert time.monotonic() < until, request.state
            self.prefill.step()
        self.decode.post(m.Abort(submit.request_id))
        self.sender.abort(number, PEER).result(HANG_SECONDS)
        self.prefill.post(m.PrefillEnd(number))
        self.prefill.run()
        self.receiver.forget(number)
        self.decode.post(m.WriterFenced(number))
        self.decode.run()

    def _start(self, submit: m.Submit) -> m.TransferRequest:
        """Run a transfer until its prompt may be computed."""
        self.decode.post(submit)
        self.decode.step()
        wanted = self._last(self.decode, m.HandoverWanted)
        self._reserve(wanted)
        transfer = self._last(self.prefill, m.PrefillAccepted).transfer_id
        self.decode.post(m.GrantWanted(transfer))
        self.decode.step()
        grant = self._last(self.decode, m.HandoverGranted).grant
        assert grant.transfer_id == transfer == wanted.transfer_request.transfer_id
        granted = Destination(grant.first_page, grant.pages, grant.slot)
        self.receiver.expect(transfer, grant.generation, granted)
        self.sender.open(transfer, grant.generation, PEER, granted, self.ends)
        self.prefill.post(m.PrefillStart(grant))
        return wanted.transfer_request

    def _reserve(self, wanted: m.HandoverWanted) -> None:
        """Reserve the prompt as the nodes do, and bring the pictures asked for. Run until it is
        accepted, because its prefix may have to be loaded first."""
        runs = runs_from_wire([*runs_to_wire(wanted.pictures)])
        reserve = m.PrefillReserve(wanted.transfer_request, wanted.prompt, PEER, runs)
        asked = len(self.prefill.all_said(m.PicturesWanted))
        self.prefill.post(reserve)
        self.prefill.run()
        for pull in self.prefill.all_said(m.PullWanted):
            # These two nodes have no way back.
            self.prefill.post(m.PullLost(pull.grant.transfer_id))
            self.prefill.post(m.PullFenced(pull.grant.transfer_id))
            self.prefill.run()
        for message in self.prefill.all_said(m.PicturesWanted)[asked:]:
            files = [wanted.pictures[index].file for index in message.pictures]
            contents = [(file.content(),) for file in files if file is not None]
            came = dict(zip(message.pictures, contents, strict=True))
            self.prefill.post(m.PicturesCame(message.transfer_id, came))
            self.prefill.run()

    @staticmethod
    def _last(engine: Lone, kind: type) -> m.Outbox:
        return engine.all_said(kind)[-1]

    def begin(self, submit: m.Submit) -> OneTransfer:
        """Run a transfer up to the start of the early step, if the answer is to have one."""
        transfer = self.hand_over(submit)
        self.ready(transfer, LONG)
        return transfer

    def join(self, transfer: OneTransfer) -> None:
        """Complete the transfer and its early step, then run until both engines are idle."""
        self.done(transfer)
        self.step_ended()
        self.decode.run()

    def ready(self, transfer: OneTransfer, tail_seconds: float | None) -> None:
        token = transfer.token
        self.decode.post(
            m.RemoteReady(
                token.transfer_id,
                token.token,
                token.logprob,
                token.margin,
                token.hit,
                "prefill",
                tail_seconds=tail_seconds,
                top=token.top,
            )
        )

    def flushed(self, transfer: OneTransfer) -> TransferSent:
        end = self.ends.wait(transfer.transfer_request.transfer_id, timeout=HANG_SECONDS)
        assert isinstance(end, TransferSent), end
        return end

    def done(self, transfer: OneTransfer) -> m.RemoteDone | m.HandoverFailed:
        """Verify the sent data and report Done or a failure to both engines, like the nodes do. The
        transfer is over afterwards."""
        end, number = self.flushed(transfer), transfer.transfer_request.transfer_id
        try:
            self.receiver.verify(
                number, transfer.transfer_request.generation, end.report.digests, HANG_SECONDS
            )
        except TransferError as error:
            message: m.RemoteDone | m.HandoverFailed = m.HandoverFailed(number, str(error))
        else:
            report = end.report
            message = m.RemoteDone(
                number, m.TransferReport(report.bytes, report.windows, report.pages, 0.0, 0.0)
            )
        self.decode.post(message)
        self.receiver.forget(number)
        self.prefill.post(m.PrefillEnd(number))
        return message

    def lose(self, transfer: OneTransfer, reason: str = "lost on purpose") -> None:
        """Report the transfer as failed although all of it was sent. The decode engine continues
        the answer by itself, and both sides end the transfer."""
        number = transfer.transfer_request.transfer_id
        self.flushed(transfer)
        self.decode.post(m.HandoverFailed(number, reason))
        self.decode.run()
        self.prefill.post(m.PrefillEnd(number))
        self.receiver.forget(number)
        self.decode.post(m.WriterFenced(number))
        self.decode.run()

    def step_ended(self, timeout: float = HANG_SECONDS) -> None:
        """Wait for the early step's end and report it to the decode engine, like its node does."""
        self.decode.post(self.said_by_steps.get(timeout=timeout))


@contextmanager
def engine_pair(
    prefill_parts: EngineParts,
    decode_parts: EngineParts,
    faults: Faults = no_faults,
    chunk_tokens: int = 64,
    wire: WireSettings | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[EnginePair]:
    """Yield a prefill and a decode engine over a loopback transport. settings: settings of the
    decode engine. REQUIRES: both models have equal weights and layouts."""
    fabric = LoopbackFabric()
    link = LoopbackTransport(fabric, "prefill", faults)
    target = LoopbackTransport(fabric, "decode")
    source, landing = (
        DataPlane.over(parts.arena.bytes, parts.layout, "w", transport, "loopback", "node", wire)
        for parts, transport in ((prefill_parts, link), (decode_parts, target))
    )
    prefill_parts = replace(prefill_parts, slabs=source.slabs)
    decode_parts = replace(decode_parts, slabs=landing.slabs)
    layout = prefill_parts.layout
    never = SenderSettings(lease_seconds=1e9, stall_seconds=1e9)
    sender = Sender(layout, [source.source(prefill_parts.steps)], never)
    receiver = Receiver(layout, [landing.target()])
    sender.connect(PEER, landing.node.arenas)
    config = EngineConfig(
        model="tiny",
        dtype="float32",
        prefill_chunk_tokens=chunk_tokens,
        local_prefill_tokens=0,
        draft_count="most",
    )
    said: SimpleQueue[m.EarlyStepEnded] = SimpleQueue()
    early = build_early_start(decode_parts, receiver.barrier, lambda: said.put(m.EarlyStepEnded()))
    prefill = Lone(config, Role.PREFILL, prefill_parts, sender)
    decode = Lone(replace(config, **settings), Role.DECODE, decode_parts, early=early)
    decode.post(m.PeersChanged(True))
    sender.start()
    receiver.start()
    try:
        yield EnginePair(prefill, decode, sender, receiver, link, fabric, early, said)
    finally:
        fabric.let_go()
        link.bytes_per_second = None
        for engine in (prefill, decode):
            if engine.engine._pictures is not None:
                engine.engine._pictures.close()
        early.close()
        sender.stop()
        receiver.stop()
        link.close()
        target.close()
