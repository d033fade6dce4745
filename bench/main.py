"""`tasuki bench BENCH`: runs one bench. A bench prints rows of measured time, hardware floor and
their ratio."""

import importlib
import sys
from collections.abc import Sequence

_BENCHES = {
    "kernels": "every kernel alone, beside its bytes or FLOPs",
    "decode": "steps of a whole model",
    "grammar": "what grammars of answers cost the host at a step",
    "prefill": "cold prompts of a whole model",
    "agentic": "sessions that grow turn by turn: first tokens, hit rate",
    "tiers": "sessions that return from below the arena, copies beside steps",
    "transfer": "hand-overs between two processes: of the link, and of the forward's time",
    "collectives": "what several ranks exchange, beside NCCL and symmetric memory",
    "route": "choices of a prefill node: processor time, the index's memory",
    "serving": "daemons under many clients: CPU time a token, gaps, hand-overs",
    "pictures": "chats with pictures: stages, first tokens, answers beside them",
    "page": "the page of a file of runs, made anew",
}


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in _BENCHES:
        bench, *rest = argv
        return int(importlib.import_module(f".{bench}", __package__).main(rest))
    asked_for_help = bool(argv) and argv[0] in ("-h", "--help")
    rows = [f"  {name:<13}{text}" for name, text in _BENCHES.items()]
    text = "\n".join(["usage: tasuki bench BENCH [FLAGS] (BENCH --help lists them)", "", *rows])
    print(text, file=sys.stdout if asked_for_help else sys.stderr)
    return 0 if asked_for_help else 2
