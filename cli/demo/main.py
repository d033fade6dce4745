"""`tasuki demo`: ten turns of an agent through two daemons and through one process, compared.

Both are played at the same time: on two cores each has its own, for a daemon computes on one.

The daemons draft answers by the model's own draft layer, where it has one and as long as that
gains; the process does not.

Owns the daemons while they run; leaves no process and no file behind.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tasuki.cli.embedded import embedded_model
from tasuki.cli.launcher import disaggregated, fused
from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client, Session
from tasuki.model.weights.safetensors_folder import has_draft_layer
from tasuki.utils.config.flags import parse_config
from tasuki.utils.config.options import option

from . import script as demo_script
from . import session_table as table
from .token_comparison import compare

# A small model repeats itself when greedy. The noise depends on (seed, position) only, so that both
# runs must draw the same tokens all the same.
SAMPLING: SamplingOptions = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
_KNOWS_NOTHING = (
    "It knows nothing: its sentences look like English and mean nothing. All else is as it is for "
    "a real model."
)
_EDITED = "The last turn with other ends: KV counts only as far as a state stands behind it."


@dataclass(frozen=True)
class DemoConfig:
    model: str = option("", "folder of a Qwen3.5-family checkpoint; the embedded one if empty")
    answer_tokens: int = option(64, "tokens of an answer at most")
    arena_mib: int = option(256, "KV pages and state slots of each daemon, MiB")


def main(argv: Sequence[str]) -> int:
    """0 only if both runs gave equal tokens."""
    config = parse_config("tasuki demo", "Ten turns of an agent.", argv, DemoConfig)
    model = config.model or str(embedded_model())
    flags = ["--model", model, "--dtype", "float32", "--arena-mib", str(config.arena_mib)]
    write_line(f"Model {model}")
    if not config.model:
        write_line(_KNOWS_NOTHING)
    write_line("Starting a prefill daemon and a decode daemon, and beside them one process ...")
    drafter = "mtp" if has_draft_layer(model) else "off"
    given_up, rows_alone = threading.Event(), list[str]()
    fused_flags = [*flags, "--speculate", "off"]
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(
            play, fused(fused_flags), config.answer_tokens, rows_alone.append, given_up
        )
        try:
            pair_flags = [*flags, "--speculate", drafter]
            pair = play(disaggregated(pair_flags), config.answer_tokens, write_line, given_up)
            usages = [answer.usage for answer in pair]
            write_line(f"\n{table.hand_overs(usages)}\n{table.drafts(usages)}")
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
) -> list[Answer]:
    """The whole session through these daemons, a table row as each turn ends: the ten turns,
    then the last one anew with other endings. Raises CancelledError before a turn once it is given
    up."""
    sampling: SamplingOptions = {**SAMPLING, "max_new_tokens": answer_tokens}
    answers = []

    def ask(session: Session, title: str, messages: demo_script.Turn) -> None:
        if given_up.is_set():
            raise CancelledError("the demo was given up")
        session.append(Prompt(messages=messages))
        answers.append(session.generate(**sampling).result())
        write(table.row(title, answers[-1].usage))

    with daemons as address, Client(address) as client:
        write(f"Ready at {address}\n\n{table.header()}")
        *turns, last = demo_script.turns()
        edits = demo_script.edited_turns()
        with client.open_session() as session:
            for number, messages in enumerate(turns, 1):
                ask(session, str(number), messages)
            forks = [session.fork() for _ in edits]
            ask(session, str(len(turns) + 1), last)
        write(_EDITED)
        for letter, fork, messages in zip("bcdefgh", forks, edits, strict=False):
            with fork:
                ask(fork, f"{len(turns) + 1}{letter}", messages)
    return answers


def write_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
