"""One grammar trial: the grammar is compiled in a forked child process, within limits kept by the
kernel.

The child (utils/bounded_child.py) writes one verdict to its pipe and ends. If a grammar costs too
much, a signal ends the child, and this signal counts as the verdict. Thread rule: the parent's one
thread forks; the child runs on it.
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
"""Limit of a trial's processor time, in seconds."""
MAX_ADDRESS_BYTES = 512 << 20
"""Limit of a trial's address space in bytes, the vocabulary's token tree included."""

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
"""Function that compiles a source and returns the verdict. It runs in a trial's child."""


@dataclass(frozen=True)
class Trees:
    """Token trees from token_tree(). vocabulary: tree of the model's tokens. letters: tree of a
    small vocabulary with all bytes."""

    vocabulary: Any
    letters: Any

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Trees":
        """Build and return the token trees of the model's vocabulary and of all bytes. Raises
        GrammarsUnavailable."""
        return cls(token_tree(vocabulary), token_tree(ALL_BYTES))


def tried(trees: Trees, source: Source) -> Verdict:
    """Compile the grammar source for a vocabulary of all bytes, then for the model's vocabulary.
    Return the verdict. Raises the errors of a broken installation."""
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
    """Fork a child process to try the grammar source, and return it. REQUIRES: this process has one
    thread. Raises OSError if no process can be started."""
    # The stack of any later thread for compiling the grammar is larger than this child's.
    bounds = ChildBounds(MAX_SECONDS, MAX_ADDRESS_BYTES)
    return fork_bounded(lambda: msgspec.msgpack.encode(try_source(trees, source)), bounds)


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as counters:
            return int(counters.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def verdict_of(end: ChildEnd) -> Verdict:
    """Return the verdict of an ended child process: its own answer. For a killed or failed process,
    or an unreadable answer, the kind of its end decides."""
    if os.WIFSIGNALED(end.status):
        ended_by_kernel = os.WTERMSIG(end.status) == signal.SIGKILL
        return _OUT_OF_MEMORY if ended_by_kernel else TOO_COSTLY
    if os.WEXITSTATUS(end.status) != 0:
        return _UNREADABLE
    try:
        return msgspec.msgpack.decode(end.answer, type=Verdict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _UNREADABLE
