"""Whether a grammar can be compiled, found out where it harms nobody.

A grammar is a client's: one of a few thousand letters can take seconds of compilation, and a chain
of rules in Lark ends llguidance's process by a stack overflow. So what is long, or in Lark, is
compiled first in a process of its own, whose time and memory the kernel bounds; only what came
through there is compiled by a process that serves. Short schemas and regular expressions cost
milliseconds within llguidance's own bounds and start no process.

Verdicts depend on neither vocabulary nor model. Thread rule: any thread, but never an event loop's:
a check takes from a millisecond to MAX_SECONDS of processor time.
"""

import json
import resource
import subprocess
import sys
import threading

from tasuki.utils.bounded_cache import BoundedCache

from .compiled_grammar import check_has_texts, compiled, token_tree
from .grammar import Grammar, GrammarError, GrammarKind, GrammarsUnavailable
from .vocabulary import Vocabulary

MAX_SECONDS = 2
"""Of processor time, in the process that tries a grammar."""
_MAX_MEMORY = 2 << 30
_STACK_BYTES = 2 << 20
"""Less than any thread that compiles it later has."""
# Of the clock: behind it only a machine that does not get on explains it.
_PATIENCE_SECONDS = 60.0
_SHORT = 4 << 10
_REMEMBERED_BYTES = 4 << 20

_TOO_COSTLY = "takes too much time, memory or nesting to compile: simplify it"
_BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), b""), (256,))


class GrammarCheck:
    """Owns the verdicts of the grammars that were checked lately."""

    def __init__(self) -> None:
        self._verdicts: BoundedCache[tuple[str, str], str] = BoundedCache(_REMEMBERED_BYTES)

    def check(self, grammar: Grammar) -> None:
        """Raises GrammarError, GrammarsUnavailable."""
        key = (grammar.kind.value, grammar.source)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = _verdict(grammar)
            self._verdicts.put(key, verdict, 4 * len(grammar.source) + len(verdict))
        if verdict:
            raise GrammarError(verdict)


def _verdict(grammar: Grammar) -> str:
    """Why it cannot be compiled; empty where it can."""
    if grammar.kind is not GrammarKind.LARK and len(grammar.source) <= _SHORT:
        return _tried(grammar)
    asked = {"kind": grammar.kind.value, "source": grammar.source}
    try:
        ended = subprocess.run(
            [sys.executable, "-m", __name__],
            input=json.dumps(asked),
            capture_output=True,
            encoding="utf-8",
            timeout=_PATIENCE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return _TOO_COSTLY
    except OSError as error:
        raise GrammarsUnavailable(f"no process can be started to try it: {error}") from error
    if ended.returncode != 0:
        return _TOO_COSTLY
    answer = json.loads(ended.stdout)
    if answer["unavailable"]:
        raise GrammarsUnavailable(answer["unavailable"])
    return str(answer["verdict"])


def _tried(grammar: Grammar) -> str:
    try:
        check_has_texts(compiled(token_tree(_BYTES), grammar))
    except GrammarError as error:
        return str(error)
    return ""


def _answer(asked: str) -> str:
    try:
        verdict, unavailable = _tried(Grammar(**json.loads(asked))), ""
    except GrammarsUnavailable as error:
        verdict, unavailable = "", str(error)
    return json.dumps({"verdict": verdict, "unavailable": unavailable})


def _main() -> None:
    """Reads a grammar, writes the verdict. Ends by a signal where the grammar costs too much."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    asked = sys.stdin.read()
    threading.stack_size(_STACK_BYTES)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(_answer(asked)))
    thread.start()
    thread.join()
    sys.stdout.write(answers[0])


if __name__ == "__main__":
    _main()
