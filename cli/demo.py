"""`tasuki demo`: ten turns of an agent through two daemons and through one process, compared.

Both run at the same time: with two cores each has its own, because a daemon computes on one.

The two daemons draft answers with the model's own draft layer, if it has one and while drafting
gains. The one process drafts nothing.

Owns the daemons while they run; leaves no process and no file behind.

The conversation has ten turns of an assistant reading letters through a tool. The first turn sets
the scene. Each later turn adds a tool result or the user's next request. Every turn adds several
hundred tokens, so the context grows like an agent's. The last turn is then sent again with other
endings, like a user editing a message. The texts are in demo_letters.txt: paragraphs under the
names of their parts, two to a letter.

The session's table has one row a turn, built from the usage reported by the server. It measures
nothing: pure functions of usage objects.

The verdict compares the tokens of two runs of one session. Pure. The oracle (the single process)
reports margins, the gaps between its two best tokens. They mark near ties, because rounding may
decide such a choice.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client, Session
from tasuki.engine.messages import TransferReport, Usage
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.weights.safetensors_folder import has_draft_layer
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option
from tasuki.utils.program import PACKAGE

from .demo_picture import NO_PILLOW, can_decode, picture_of, show_picture
from .launcher import disaggregated, fused

Turn = Sequence[Mapping[str, str]]


def scripted_turns() -> list[Turn]:
    """Return the messages of the ten turns, each with role and content. The model's answers come
    between them."""
    parts = _parts()
    (scene,), (notes,) = parts["scene"], parts["notes"]
    script = [_turn(parts, number, notes) for number in range(1 + len(parts["requests"]))]
    script[0] = [{"role": "system", "content": scene}, *script[0]]
    return script


def edited_turns() -> list[Turn]:
    """Return the last turn's messages once for each other ending of its text. All share the same
    prefix."""
    parts = _parts()
    return [_turn(parts, len(parts["requests"]), ending) for ending in parts["endings"]]


def _turn(parts: Mapping[str, list[str]], number: int, end: str) -> Turn:
    """Return the user's turn `number` with the tool's result. end: last paragraph of the turn."""
    (opening,) = parts["opening"]
    pairs = iter(parts["letters"])
    letters = list(zip(pairs, pairs, strict=True))
    request = [opening, *parts["requests"]][number]
    found = _found(letters, number % len(letters), end)
    return [{"role": "user", "content": f"{request}\n\n{found}"}]


def _parts() -> dict[str, list[str]]:
    """Return the paragraphs of demo_letters.txt, a line each, by the name of their part."""
    parts: dict[str, list[str]] = {}
    for block in (
        (files(f"{PACKAGE}.cli") / "demo_letters.txt").read_text(encoding="utf-8").split("\n\n")
    ):
        if block.startswith("# "):
            paragraphs = parts[block.removeprefix("# ")] = []
        else:
            paragraphs.append(" ".join(block.split()))
    return parts


def _found(letters: Sequence[tuple[str, str]], number: int, end: str) -> str:
    """Return the tool's result: letter (mail) `number`, another letter, and the paragraph `end`.
    letters: paragraph pairs."""
    first, second = letters[number]
    beside = " ".join(letters[(number + 4) % len(letters)])
    return (
        f"The tool returned letter {number + 1}.\n{first}\n{second}\n\n"
        f"It was found together with another.\n{beside}\n\n{end}"
    )


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


NEW = "new"
"""The miss reason of tokens never computed before. The table does not count them as lost."""
COLUMNS = {
    "turn": 4,
    "prompt": 7,
    "KV-cached": 9,
    "usable": 7,
    NEW: 6,
    "first token": 11,
    "handed over": 11,
    "pages sent": 10,
    "hidden": 6,
    "tokens/s": 8,
    "drafts held": 11,
}
"""Widths of the table's columns in characters, by title."""
LAST_TITLE = "lost and why"


def header() -> str:
    cells = [f"{title:>{width}}" for title, width in COLUMNS.items()]
    return "  ".join([*cells, LAST_TITLE])


def row(turn: str, usage: Usage) -> str:
    """Return the table row of one turn as text. A dash marks an unmeasured value."""
    hit = usage.hit
    texts = (
        turn,
        str(usage.prompt_tokens),
        "-" if hit is None else str(hit.kv_tokens),
        "-" if hit is None else str(hit.usable_tokens),
        "-" if hit is None else str(hit.causes.get(NEW, 0)),
        f"{usage.time_to_first_token * 1000:.0f} ms",
        handed_over(usage.transfer),
        pages_sent(usage),
        hidden_share(usage.transfer),
        decode_rate(usage),
        drafts_held(usage),
    )
    cells = [f"{text:>{width}}" for text, width in zip(texts, COLUMNS.values(), strict=True)]
    return "  ".join([*cells, lost(usage)])


def lost(usage: Usage) -> str:
    """Return a turn's recomputed prompt tokens by miss reason except `new`, largest first, as text.
    Also marks a lost transfer."""
    causes = {} if usage.hit is None else usage.hit.causes
    parts = [
        f"{cause} {count}"
        for cause, count in sorted(causes.items(), key=lambda item: (-item[1], item[0]))
        if count and cause != NEW
    ]
    if usage.local_fallback:
        parts.append("(hand-over lost, prefilled here)")
    return ", ".join(parts) or "none"


def handed_over(transfer: TransferReport | None) -> str:
    """Return the bytes sent by the transfer as text, in binary units with three significant digits.
    Returns a dash without a transfer."""
    if transfer is None:
        return "-"
    value, unit = float(transfer.bytes), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def pages_sent(usage: Usage) -> str:
    """Return as text the number of pages sent by the transfer, of all pages of the prompt. Returns
    a dash without a transfer. The decode node had the other pages already."""
    if usage.transfer is None:
        return "-"
    return f"{usage.transfer.pages} of {_pages(usage)}"


def hidden_share(transfer: TransferReport | None) -> str:
    """Return the share of the transfer's time overlapped with the prefill forward, as text. Returns
    a dash without a transfer, or if it took no time."""
    if transfer is None:
        return "-"
    whole = transfer.hidden_seconds + transfer.exposed_seconds
    return f"{transfer.hidden_seconds / whole:.0%}" if whole > 0 else "-"


def decode_rate(usage: Usage) -> str:
    """Return the answer's tokens a second after its first token, as text. Returns a dash for
    answers of one token."""
    seconds = usage.seconds - usage.time_to_first_token
    if usage.completion_tokens < 2 or seconds <= 0:
        return "-"
    return f"{(usage.completion_tokens - 1) / seconds:.1f}"


def drafts_held(usage: Usage) -> str:
    """Return the number of accepted drafts, of all verified drafts, as text. Returns a dash if
    there were none."""
    if not usage.drafted_tokens:
        return "-"
    return f"{usage.accepted_tokens} of {usage.drafted_tokens}"


def drafts(usages: Sequence[Usage]) -> str:
    """Return a sentence with the accepted and drafted tokens of a whole session."""
    drafted = sum(usage.drafted_tokens for usage in usages)
    if not drafted:
        return "No token of the answers was drafted."
    accepted = sum(usage.accepted_tokens for usage in usages)
    tokens = sum(usage.completion_tokens for usage in usages)
    return (
        f"{accepted} of {drafted} drafted tokens held ({accepted / drafted:.0%}): "
        f"{tokens} tokens in {tokens - accepted} forwards."
    )


def hand_overs(usages: Sequence[Usage]) -> str:
    """Return sentences on the transfers of a whole session: number of prompts, computed tokens, and
    pages sent."""
    handed = [(usage, usage.transfer) for usage in usages if usage.transfer is not None]
    if not handed:
        return "Nothing was handed over."
    prompt = sum(usage.prompt_tokens for usage, _ in handed)
    usable = sum(0 if usage.hit is None else usage.hit.usable_tokens for usage, _ in handed)
    sent, pages = sum(found.pages for _, found in handed), sum(_pages(usage) for usage, _ in handed)
    hidden = sum(found.hidden_seconds for _, found in handed)
    whole = hidden + sum(found.exposed_seconds for _, found in handed)
    beside = f", {hidden / whole:.0%} of the time beside the forward" if whole > 0 else ""
    return (
        f"{len(handed)} prompts of {prompt} tokens were handed over, none of which the decode node "
        f"computed. The prefill node computed {prompt - usable}: of {usable} it had KV and state.\n"
        f"{sent} of {pages} pages were sent{beside}: the decode node kept the others."
    )


def _pages(usage: Usage) -> int:
    return -(-usage.prompt_tokens // PAGE_TOKENS)


TIE_MARGIN = 1e-3
TIE_SHARE = 1e-3


@dataclass(frozen=True)
class Verdict:
    """The comparison of two runs of a session. tokens: number of compared tokens. ties: (turn,
    position) of each divergence at a near tie. Later tokens of such a turn belong to another text,
    and are not compared. difference: (turn, position) of the first divergence without a near
    tie."""

    tokens: int
    ties: tuple[tuple[int, int], ...]
    difference: tuple[int, int] | None

    @property
    def equal(self) -> bool:
        return self.difference is None and len(self.ties) <= TIE_SHARE * self.tokens

    def __str__(self) -> str:
        if self.difference is not None:
            turn, position = self.difference
            return f"NOT EQUAL: the runs part in turn {turn} at token {position}"
        ties = "".join(
            f"; near tie in turn {turn} at token {position}" for turn, position in self.ties
        )
        word = "EQUAL" if self.equal else "NOT EQUAL (too many near ties)"
        return f"{word}: {self.tokens} tokens compared{ties}"


def compare(answers: Sequence[Answer], oracle: Sequence[Answer]) -> Verdict:
    """Return the comparison of a session's answers, turn by turn, with the oracle's answers in the
    same session. It ends at the first divergence."""
    tokens = 0
    for turn, (ours, theirs) in enumerate(zip(answers, oracle, strict=True), 1):
        rows = zip_longest(ours.token_ids, theirs.token_ids, theirs.margins)
        for position, (token, expected, margin) in enumerate(rows):
            tokens += 1
            if token == expected:
                continue
            if margin is not None and margin < TIE_MARGIN:
                return Verdict(tokens, ((turn, position),), None)
            return Verdict(tokens, (), (turn, position))
    return Verdict(tokens, (), None)


# A small model repeats itself when greedy. The noise depends on (seed, position) only, so both runs
# must still sample the same tokens.
SAMPLING: SamplingOptions = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
_HANDED_OVER = ("--local-prefill-tokens", "32")
"""Flags of the decode node. The short prompt with a picture is handed over too."""
_KNOWS_NOTHING = (
    "It knows nothing: its sentences look like English and mean nothing. All else is as it is for "
    "a real model."
)
_EDITED = "The last turn with other ends: KV counts only as far as a state stands behind it."


@dataclass(frozen=True)
class DemoConfig:
    model: str = option("", "folder of a checkpoint; the embedded one if empty")
    answer_tokens: int = option(64, "tokens of an answer at most")
    arena_mib: int = option(256, "KV pages and state slots of each daemon, MiB")


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if the daemons and the single process gave equal tokens, near ties
    aside; else 1."""
    config = parse_config("tasuki demo", "Ten turns of an agent.", argv, DemoConfig)
    model = config.model or str(embedded_model())
    flags = ["--model", model, "--dtype", "float32", "--arena-mib", str(config.arena_mib)]
    write_line(f"Model {model}")
    if not config.model:
        write_line(_KNOWS_NOTHING)
    write_line("Starting a prefill daemon and a decode daemon, and beside them one process ...")
    drafter = "mtp" if has_draft_layer(model) else "off"
    picture = picture_of(model)
    if picture is not None and not can_decode():
        write_line(NO_PILLOW)
        picture = None
    given_up, rows_alone = threading.Event(), list[str]()
    fused_flags = [*flags, "--speculate", "off"]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            play, fused(fused_flags), config.answer_tokens, rows_alone.append, given_up
        )
        try:
            pair_flags = [*flags, "--speculate", drafter]
            daemons = disaggregated(pair_flags, _HANDED_OVER)
            most = config.answer_tokens
            pair = play(daemons, most, write_line, given_up, picture)
            usages = [answer.usage for answer in pair]
            write_line(f"\n{hand_overs(usages)}\n{drafts(usages)}")
            write_line("\nThe same session in the one process, which drafts nothing:")
            alone = other.result()
        except BaseException:
            given_up.set()
            raise
    write_line("\n".join(rows_alone))
    verdict = compare(pair, alone)
    write_line(f"\nThe last answer: {' '.join(pair[-1].text.split()) or '(no readable text)'}")
    write_line(f"\nTwo daemons against one process, fp32: {verdict}")
    return 0 if verdict.equal else 1


def play(
    daemons: AbstractContextManager[str],
    answer_tokens: int,
    write: Callable[[str], None],
    given_up: threading.Event,
    picture: bytes | None = None,
) -> list[Answer]:
    """Run the whole session through these daemons, writing a table row at the end of each turn.
    Return the answers, one a turn. The session has the ten turns, then the last one again with
    other endings. picture: a file to ask about behind the session. Raises CancelledError before a
    turn once `given_up` is set."""
    sampling: SamplingOptions = {**SAMPLING, "max_new_tokens": answer_tokens}
    answers = []

    def ask(session: Session, title: str, messages: Turn) -> None:
        if given_up.is_set():
            raise CancelledError("the demo was given up")
        session.append(Prompt(messages=messages))
        answers.append(session.generate(**sampling).result())
        write(row(title, answers[-1].usage))

    with daemons as address, Client(address) as client:
        write(f"Ready at {address}\n\n{header()}")
        *turns, last = scripted_turns()
        edits = edited_turns()
        with client.open_session() as session:
            for number, messages in enumerate(turns, 1):
                ask(session, str(number), messages)
            forks = [session.fork() for _ in edits]
            ask(session, str(len(turns) + 1), last)
        write(_EDITED)
        for letter, fork, messages in zip("bcdefgh", forks, edits, strict=False):
            with fork:
                ask(fork, f"{len(turns) + 1}{letter}", messages)
        if picture is not None:
            show_picture(client, picture, write)
    return answers


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
