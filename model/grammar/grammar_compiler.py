"""The grammars of an engine: compiled on threads of its own, and kept.

Owns the vocabulary's tree, the threads, and what is compiled. Thread rule: the engine loop's; the
threads here compile and touch nothing else. Invariants: what is kept of compiled grammars never
counts for more than the capacity; one that is asked for again is compiled again, with the same
masks; what is being compiled is what somebody waits for (retain), in turns of the callers.
"""

from collections.abc import Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from tasuki.utils.bounded_cache import BoundedCache
from tasuki.utils.fair_threads import FairThreads

from .compiled_grammar import Matcher, compiled, token_tree
from .constraint import Constraint
from .grammar import Grammar, GrammarsUnavailable
from .grammar_check import GrammarCheck
from .vocabulary import Vocabulary

DEFAULT_CACHE_BYTES = 256 << 20
_LEAST_BYTES = 256 << 10
_BYTES_A_LETTER = 64
"""About what a compiled grammar takes of memory: llguidance reports none of it."""

_THREADS = 2

_Key = tuple[str, str]

Wanted = tuple[str, Grammar]
"""A caller, and a grammar that a request of it waits for."""


class GrammarCompiler:
    def __init__(
        self, vocabulary: Vocabulary | None, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        """vocabulary: of the model; None where its checkpoint has no tokenizer."""
        self._vocabulary = vocabulary
        self._tree: Any = None
        self._unavailable = ""
        self.checks = GrammarCheck()
        """Any thread's: a front in this process tries by the same, and neither tries twice."""
        self._kept: BoundedCache[_Key, Matcher] = BoundedCache(cache_bytes)
        self._compiling: dict[tuple[str, _Key], Future[Matcher]] = {}
        self._threads = FairThreads(_THREADS, 1, "tasuki-grammars")

    def prepare(self) -> None:
        """Before anybody waits: takes a second for a large vocabulary, during which no other thread
        runs. Without it the first grammar waits for that."""
        if self._tree is not None or self._unavailable:
            return
        if self._vocabulary is None:
            self._unavailable = (
                "grammars need the text of each token: this checkpoint has no byte-level "
                "tokenizer.json"
            )
            return
        try:
            self._tree = token_tree(self._vocabulary)
        except GrammarsUnavailable as error:
            self._unavailable = str(error)

    @property
    def compiling(self) -> bool:
        """Whether a grammar that somebody asked for is not ready yet."""
        return any(not item.done() for item in self._compiling.values())

    @property
    def kept(self) -> int:
        """Compiled grammars."""
        return len(self._kept)

    @property
    def held(self) -> int:
        """Grammars that are being compiled, or were and nobody has looked."""
        return len(self._compiling)

    def wait(self) -> None:
        """Until all that was begun has been compiled, or cannot be."""
        wait(self._compiling.values())

    def retain(self, wanted: Iterable[Wanted]) -> None:
        """Give up what was begun and is not wanted any more."""
        kept = {(caller, _key(grammar)) for caller, grammar in wanted}
        for begun in self._compiling.keys() - kept:
            self._compiling.pop(begun).cancel()

    def begins(self, grammar: Grammar, caller: str = "") -> bool:
        """Whether ready() would begin a compilation."""
        key = _key(grammar)
        return self._kept.get(key) is None and (caller, key) not in self._compiling

    def ready(self, grammar: Grammar, caller: str = "") -> bool:
        """Whether constraint() needs no compilation; begins one, in the caller's turn, where it
        would. Raises GrammarError, GrammarsUnavailable."""
        key = _key(grammar)
        if self._kept.get(key) is not None:
            return True
        self._require_tree()
        begun = self._compiling.get((caller, key))
        if begun is None:
            compile_it = partial(self._compile, grammar)
            self._compiling[caller, key] = self._threads.submit(caller, compile_it)
            return False
        if not begun.done():
            return False
        del self._compiling[caller, key]
        self._keep(key, begun.result())
        return True

    def constraint(self, grammar: Grammar, output: Iterable[int]) -> Constraint:
        """As far as an answer has come. Raises GrammarError, GrammarsUnavailable."""
        key = _key(grammar)
        matcher = self._kept.get(key)
        if matcher is None:
            self._require_tree()
            matcher = self._compile(grammar)
            self._keep(key, matcher)
        vocabulary = self._vocabulary
        assert vocabulary is not None
        made = Constraint(matcher.deep_copy(), grammar, vocabulary.eos_ids, vocabulary.tokens)
        for token in output:
            made.append(token)
        return made

    def _require_tree(self) -> None:
        self.prepare()
        if self._unavailable:
            raise GrammarsUnavailable(self._unavailable)

    def _compile(self, grammar: Grammar) -> Matcher:
        """On any thread."""
        self.checks.check(grammar)
        return compiled(self._tree, grammar)

    def _keep(self, key: _Key, matcher: Matcher) -> None:
        self._kept.put(key, matcher, _LEAST_BYTES + _BYTES_A_LETTER * len(key[1]))


def _key(grammar: Grammar) -> _Key:
    return grammar.kind.value, grammar.source
