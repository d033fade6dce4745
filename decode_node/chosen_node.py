"""The prefill node that was chosen for a prompt: whether the prompt should move on, and why it went
there. Values alone. Thread rule: the hand-over's event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tasuki.decode_node.prefill_links import PrefillConnection, PrefillLink
from tasuki.engine import messages as m
from tasuki.routing.node_choice import Bid, Choice, Reason, should_move
from tasuki.routing.node_load import PrefillSeconds
from tasuki.routing.prefix_hints import Beginning

_SHOWN_BIDS = 8

Standing = tuple[PrefillLink, PrefillConnection]


@dataclass(frozen=True)
class Chosen:
    """link, connection: where the prompt of so many tokens goes. choice: why; moved_from: where it
    was before. seconds: of a prefill. asked_at: monotonic seconds. beginnings: of the
    prompt. held: tokens of it by node, of those that are known to hold most."""

    link: PrefillLink
    connection: PrefillConnection
    choice: Choice
    standing: Mapping[int, Standing]
    tokens: int
    seconds: PrefillSeconds
    asked_at: float
    beginnings: Sequence[Beginning] = ()
    held: Mapping[int, int] = field(default_factory=dict)
    moved_from: str = ""

    @property
    def second(self) -> str | None:
        """The target of the second choice, which the prompt may go on to; None where it may go
        nowhere else, since no costs decided or it has moved already."""
        second = self.choice.second
        if self.choice.reason is not Reason.COST or second is None or self.moved_from:
            return None
        return self.standing[second.candidate.node][0].target

    def should_move(self, wait: float) -> bool:
        """Whether the second choice is cheaper, now that so many seconds of prefill are before the
        prompt. REQUIRES: there is a second choice."""
        second = self.choice.second
        assert second is not None
        return should_move(self.choice.chosen, second, wait)

    @property
    def listed(self) -> int:
        """Tokens that the node says it holds, believed or not."""
        return self.held.get(self.choice.chosen.candidate.node, 0)

    def report(self, wait: float | None, usable: int) -> m.PrefillChoice:
        """wait: of prefill that was before the prompt; None where that was little. usable: tokens
        of which the node had state."""
        choice, chosen = self.choice, self.choice.chosen
        shown = list(choice.bids[:_SHOWN_BIDS])
        if not any(bid is chosen for bid in shown):
            shown[-1] = chosen
        return m.PrefillChoice(
            choice.reason.value,
            tuple(self._shown(bid) for bid in shown),
            len(choice.bids),
            chosen.candidate.usable,
            self._regret(wait, usable),
            self.moved_from,
        )

    def _regret(self, wait: float | None, usable: int) -> float:
        second, chosen = self.choice.second, self.choice.chosen
        if second is None:
            return 0.0
        waited = 0.0 if wait is None else wait - chosen.candidate.wait
        computed = self.seconds.between(min(usable, self.tokens), self.tokens)
        return max(0.0, chosen.cost + waited + computed - chosen.prefill - second.cost)

    def _shown(self, bid: Bid) -> m.PrefillBid:
        link, connection = self.standing[bid.candidate.node]
        return m.PrefillBid(
            connection.node.name,
            link.target,
            bid.candidate.usable,
            bid.prefill,
            bid.candidate.wait,
            bid.candidate.exposed,
            bid.cost,
            bid is self.choice.chosen,
        )
