"""The same text workload on two nodes of one checkpoint: with its tower, and with `--vision off`.

Both have arenas of equal bytes. Each turn is asked of one node and at once of the other, in
alternating order, so a slow moment of the machine meets both. Processor time of a node is exact
where the wall clock of a shared machine is not.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from tasuki.bench.load.cpu_by_role import sample, use_between
from tasuki.bench.load.node_process import NodeProcess
from tasuki.bench.measure.report import Report, Row

from .chat_client import Chat, ChatClient, Message, assistant, fresh, user
from .config import PicturesConfig
from .vocabulary import text_of

_PREFIX = 300
_OWN_TEXT = 20
_ANSWER = 16
_MOST_DIFFERENCE = 0.01


@dataclass(frozen=True)
class _Turn:
    """One turn on one node. wall, cpu: seconds."""

    chat: Chat
    wall: float
    cpu: float

    @property
    def shown(self) -> tuple[str, int, int]:
        """Return what both nodes must have in common."""
        return self.chat.text, self.chat.prompt_tokens, self.chat.cached_tokens


class TextOnly:
    """The measurement. Agents run one after the other; all of them have a common prefix."""

    def __init__(self, config: PicturesConfig, vocabulary: int) -> None:
        self._config = config
        self._vocabulary = vocabulary

    async def measure(
        self,
        nodes: Mapping[str, NodeProcess],
        clients: Mapping[str, ChatClient],
        report: Report,
    ) -> None:
        """Add the rows. nodes, clients: two by name, the one with a tower first. Raises
        BenchError."""
        turns: dict[str, list[_Turn]] = {name: [] for name in nodes}
        for number in range(-1, self._config.sessions):
            messages = [user(self._text("prefix", _PREFIX) + self._text(f"{number}", _OWN_TEXT))]
            for turn in range(self._config.turns):
                order = list(nodes) if turn % 2 else list(nodes)[::-1]
                asked = {
                    name: await self._turn(nodes[name], clients[name], messages) for name in order
                }
                # The first session compiles and warms up.
                for name in nodes if number >= 0 else ():
                    turns[name].append(asked[name])
                later = self._text(f"{number} {turn}", self._config.question_tokens)
                answer = asked[next(iter(nodes))].chat.text
                messages += [assistant(answer), user(later)]
        own, other = turns.values()
        self._add_rows(own, other, report)

    async def _turn(self, node: NodeProcess, client: ChatClient, messages: list[Message]) -> _Turn:
        body = client.body(messages, _ANSWER)
        before, began = sample(node.pid), time.monotonic()
        chat = await fresh(client, body)
        wall, use = time.monotonic() - began, use_between(node.pid, before, sample(node.pid))
        return _Turn(chat, wall, use.engine + use.front)

    def _add_rows(self, own: list[_Turn], other: list[_Turn], report: Report) -> None:
        """own: of the node with a tower. other: of the one without, in the same order."""
        differing = sum(a.shown != b.shown for a, b in zip(own, other, strict=True))
        prompt = sum(turn.chat.prompt_tokens for turn in own)
        hits = sum(turn.chat.cached_tokens for turn in own) / prompt
        equal = (f"tokens and hits equal in {len(own) - differing} of {len(own)}", not differing)
        for kind in ("cpu", "wall"):
            ratios = [getattr(a, kind) / getattr(b, kind) for a, b in zip(own, other, strict=True)]
            ratio = median(ratios)
            ordered = sorted(ratios)
            extra = {
                "x without": ratio,
                "p25": ordered[len(ordered) // 4],
                "p75": ordered[3 * len(ordered) // 4],
                "hit rate": hits,
            }
            row = Row(
                f"{kind} time of a turn of text, with a tower",
                median(getattr(turn, kind) for turn in own),
                others={"--vision off": median(getattr(turn, kind) for turn in other)},
                extra=extra,
            )
            report.add(row.asked(equal, ("within 1%", ratio <= 1 + _MOST_DIFFERENCE)))

    def _text(self, seed: str, tokens: int) -> str:
        return text_of(seed, tokens, self._vocabulary)
