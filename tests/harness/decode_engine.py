"""A decode engine without a prefill node; the test plays the prefill node."""

from collections.abc import Sequence
from pathlib import Path

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tests.harness.engines import Lone, engine_config, prompt, submit, tiny_parts

_HIT = m.HitBreakdown(100, 0, 0, {"new": 100}, None)


class DecodeNode(Lone):
    """A decode engine driven by hand. It requests a transfer for every prompt of more than 64
    tokens."""

    def __init__(self, folder: Path, slabs: int | None = None, **settings: object) -> None:
        config = engine_config(folder, local_prefill_tokens=64, route="fixed", **settings)
        super().__init__(config, Role.DECODE, tiny_parts(slabs=slabs))
        self._answered = 0
        self.post(m.PeersChanged(True))

    def want(self, name: str, tokens: int, new_tokens: int, seed: int = 0) -> None:
        self.post(submit(name, prompt(tokens, seed=seed or 1 + len(self.said)), new_tokens))

    @property
    def asked(self) -> list[str]:
        return [wanted.request_id for wanted in self.all_said(m.HandoverWanted)]

    @property
    def granted(self) -> list[str]:
        names = {
            w.transfer_request.transfer_id: w.request_id for w in self.all_said(m.HandoverWanted)
        }
        return [names[said.grant.transfer_id] for said in self.all_said(m.HandoverGranted)]

    def want_each(self, names: Sequence[str], tokens: int, new_tokens: int) -> None:
        """Submit one prompt of `tokens` tokens for each name, then run one engine step."""
        for name in names:
            self.want(name, tokens, new_tokens)
        self.step()

    def leave(self, name: str) -> None:
        """Abort a request, as after its client's disconnect."""
        self.post(m.Abort(m.RequestId(name)))

    def transfer_id(self, name: str) -> m.TransferId:
        return next(
            w.transfer_request.transfer_id
            for w in self.all_said(m.HandoverWanted)
            if w.request_id == name
        )

    def accept(self, name: str) -> None:
        self.post(m.GrantWanted(self.transfer_id(name)))
        self.step()

    def complete(self, name: str) -> None:
        """Complete the transfer of a request, with zeros in all its pages and states."""
        arena, transfer_id = self.parts.arena, self.transfer_id(name)
        (grant,) = [
            s.grant for s in self.all_said(m.HandoverGranted) if s.grant.transfer_id == transfer_id
        ]
        for kv in arena.views("kv"):
            kv[list(grant.pages)] = 0
        for state in (*arena.views("conv"), *arena.views("ssm")):
            state[grant.slot] = 0
        self.post(m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "prefill"))
        self.post(m.RemoteDone(transfer_id, m.TransferReport(0, 0, 0, 0.0, 0.0)))

    def hand_over(self) -> None:
        """Complete the transfer of each request waiting for one."""
        for name in self.asked[self._answered :]:
            self._answered += 1
            self.accept(name)
            self.complete(name)
