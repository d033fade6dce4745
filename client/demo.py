"""`tasuki demo`: ten turns of an agent through two daemons, then through one process, compared.

Owns the daemons while they run; leaves no process and no file behind.
"""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from ..dashboard import table
from ..engine.config import option
from ..front.flags import parse_config
from . import demo_script
from .answer import Answer
from .launcher import PACKAGE, disaggregated, fused
from .session import Client, Prompt
from .verdict import compare


class DemoModelError(RuntimeError):
    """There is no model to demonstrate with."""


@dataclass(frozen=True)
class DemoConfig:
    model: str = option("", "folder of a Qwen3.5-family checkpoint; the embedded one if empty")
    answer_tokens: int = option(48, "tokens of an answer at most")
    arena_mib: int = option(256, "KV pages and state slots of each daemon, MiB")

    def daemon_flags(self) -> list[str]:
        return [
            *("--model", self.model or str(embedded_model())),
            *("--dtype", "float32"),
            *("--arena-mib", str(self.arena_mib)),
        ]


def main(argv: Sequence[str]) -> int:
    """0 only if both runs gave equal tokens."""
    config = parse_config("tasuki demo", "Ten turns of an agent.", argv, DemoConfig)
    say("Starting a prefill daemon and a decode daemon ...")
    pair = play(disaggregated, config)
    say("\nThe same session in one fused process ...")
    alone = play(fused, config)
    verdict = compare(pair, alone)
    say(f"\nThe last answer: {pair[-1].text.strip() or '(the model has no tokenizer)'}")
    say(f"\nTwo daemons against one process, fp32 greedy: {verdict}")
    return 0 if verdict.equal else 1


def play(
    start: Callable[[Sequence[str]], AbstractContextManager[str]], config: DemoConfig
) -> list[Answer]:
    """The whole session through daemons of its own, a table row as each turn ends."""
    answers = []
    with start(config.daemon_flags()) as address, Client(address) as client:
        say(f"Ready at {address}\n\n{table.header()}")
        with client.open_session() as session:
            for number, messages in enumerate(demo_script.turns(), 1):
                session.append(Prompt(messages=messages))
                answer = session.generate(max_new_tokens=config.answer_tokens).result()
                answers.append(answer)
                say(table.row(number, answer.usage))
    return answers


def embedded_model() -> Path:
    """The folder of the model that the package carries. Raises DemoModelError."""
    spec = importlib.util.find_spec(f"{PACKAGE}.model")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "embedded"
        if (folder / "config.json").exists():
            return folder
    raise DemoModelError("this build carries no embedded model: give a checkpoint with --model DIR")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
