"""A pair whose link is lost again and again, and the answers that an undisturbed process gives."""

import re
import urllib.request
from dataclasses import dataclass

from scripts.faulty_pair import FaultyPair
from scripts.lost_links.plan import CONVERSATIONS, NEW_TOKENS, prompt
from tasuki.cli.demo import TIE_MARGIN
from tasuki.client.prompt import Prompt
from tests.harness.daemons import Node, flags

_MEET_SECONDS = 30.0
_LOST = re.compile(r'^tasuki_handovers_lost_total\{cause="(\w+)"\} (\S+)$', re.MULTILINE)


@dataclass(frozen=True)
class Turn:
    """A prompt, and the tokens that it must be answered with."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def conversations() -> tuple[tuple[Turn, Turn], ...]:
    """Of two turns each, no token of which is a near tie."""
    oracle = Node("serve", *flags(arena_mib=32)).wait_ready()
    try:
        found: list[tuple[Turn, Turn]] = []
        for seed in range(20 * CONVERSATIONS):
            first = _turn(oracle, prompt(seed, 0))
            second = first and _turn(oracle, (*first.prompt, *first.tokens, *prompt(seed, 1)))
            if first and second:
                found.append((first, second))
            if len(found) == CONVERSATIONS:
                return tuple(found)
        raise AssertionError("too few conversations without a near tie")
    finally:
        assert oracle.stop() == 0


def _turn(oracle: Node, tokens: tuple[int, ...]) -> Turn | None:
    asked = Prompt(token_ids=tokens)
    answer = oracle.client.generate(asked, max_new_tokens=NEW_TOKENS, ignore_eos=True).result()
    return Turn(tokens, answer.token_ids) if min(answer.margins) > TIE_MARGIN else None


class World(FaultyPair):
    def __init__(self, patience: float) -> None:
        """patience: factor on what is waited for."""
        self.conversations = conversations()
        # How long anybody waits is the host's doing, not the fault's.
        shared = (*flags(arena_mib=128), "--queue-timeout", "300", "--pull-tokens", "1")
        decode = (*shared, "--local-prefill-tokens", "8", "--http-bind", "127.0.0.1:0")
        super().__init__(shared, decode, _MEET_SECONDS * patience)

    def lost_by_cause(self) -> dict[str, int]:
        """Hand-overs, as the decode node counts them."""
        with urllib.request.urlopen(f"http://{self.decode.http_address}/metrics") as reply:
            counts = _LOST.findall(reply.read().decode())
        return {cause: int(float(count)) for cause, count in counts if float(count)}
