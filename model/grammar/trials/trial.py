"""One trial: a grammar compiled in a forked child, within bounds kept by the kernel.

The child (utils/bounded_child.py) writes one verdict to its pipe and ends. A grammar with too high
a cost ends it by a signal, and the signal is a verdict too. Thread rule: the parent's one thread
forks; the child runs on it.
"""

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.model.grammar.compiled_grammar import check_has_texts, compiled, token_tree
from tasuki.model.grammar.grammar import Grammar, GrammarError
from tasuki.model.grammar.vocabulary import ALL_BYTES, Vocabulary
from tasuki.utils.bounded_child import BoundedChild, ChildBounds, ChildEnd, fork_bounded

from .messages import Outcome, Verdict
from .queue import Source

MAX_SECONDS = 2
"""Seconds of processor time of one trial."""
MAX_ADDRESS_BYTES = 512 << 20
"""Bytes of address space of one trial, the vocabulary's tree included."""
_STACK_BYTES = 2 << 20
"""Bytes of stack, less than in any thread compiling the grammar later."""

TOO_COSTLY = Verdict(
    Outcome.REFUSED, "takes too much time, memory or nesting to compile: simplify it"
)
_UNREADABLE = Verdict(
    Outcome.UNAVAILABLE, "the trial of the grammar gave no readable answer: ask again"
)
_OUT_OF_MEMORY = Verdict(
    Outcome.BUSY, "the trial of the grammar was ended from outside: ask again, or another node"
)

Try = Callable[["Trees", Source], Verdict]
"""Compiles the source and returns the verdict. Runs in the child."""


@dataclass(frozen=True)
class Trees:
    """Token trees from token_tree(). vocabulary: the model's. letters: all bytes."""

    vocabulary: Any
    letters: Any

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Trees":
        """Build both trees. Raises GrammarsUnavailable."""
        return cls(token_tree(vocabulary), token_tree(ALL_BYTES))


def tried(trees: Trees, source: Source) -> Verdict:
    """Compile the source over all bytes, then over the model's vocabulary. Raises the errors of a
    broken installation."""
    before = _resident_bytes()
    try:
        grammar = Grammar(source.kind, source.text)
        check_has_texts(compiled(trees.letters, grammar))
        matcher = compiled(trees.vocabulary, grammar)
        held = _resident_bytes() - before
    except GrammarError as error:
        return Verdict(Outcome.REFUSED, str(error))
    del matcher
    return Verdict(Outcome.PASSED, held_bytes=max(0, held))


def fork_trial(try_source: Try, trees: Trees, source: Source) -> BoundedChild:
    """Start a trial. REQUIRES: this process has one thread. Raises OSError if no process can be
    started."""
    bounds = ChildBounds(MAX_SECONDS, MAX_ADDRESS_BYTES, _STACK_BYTES)
    return fork_bounded(lambda: msgspec.msgpack.encode(try_source(trees, source)), bounds)


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as counters:
            return int(counters.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def verdict_of(end: ChildEnd) -> Verdict:
    """Return the verdict of an ended child."""
    if os.WIFSIGNALED(end.status):
        ended_by_kernel = os.WTERMSIG(end.status) == signal.SIGKILL
        return _OUT_OF_MEMORY if ended_by_kernel else TOO_COSTLY
    if os.WEXITSTATUS(end.status) != 0:
        return _UNREADABLE
    try:
        return msgspec.msgpack.decode(end.answer, type=Verdict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _UNREADABLE
