"""The grammars of an engine: compiled on a thread of its own, and kept.

Owns the vocabulary's tree, the thread, and what is compiled. Thread rule: the engine loop's; the
thread here compiles and touches nothing else. Invariant: what is kept of compiled grammars never
counts for more than the capacity; one that is asked for again is compiled again, with the same
masks.
"""

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from tasuki.utils.bounded_cache import BoundedCache
from tasuki.utils.os_threads import name_this_thread

from .compiled_grammar import Matcher, compiled, token_tree
from .constraint import Constraint
from .grammar import Grammar, GrammarsUnavailable
from .grammar_check import GrammarCheck
from .vocabulary import Vocabulary

DEFAULT_CACHE_BYTES = 256 << 20
_LEAST_BYTES = 256 << 10
_BYTES_A_LETTER = 64
"""About what a compiled grammar takes of memory: llguidance reports none of it."""

_Key = tuple[str, str]


class GrammarCompiler:
    def __init__(
        self, vocabulary: Vocabulary | None, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> None:
        """vocabulary: of the model; None where its checkpoint has no tokenizer."""
        self._vocabulary = vocabulary
        self._tree: Any = None
        self._unavailable = ""
        self._checks = GrammarCheck()
        self._kept: BoundedCache[_Key, Matcher] = BoundedCache(cache_bytes)
        self._compiling: dict[_Key, Future[Matcher]] = {}
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="tasuki-grammars", initializer=name_this_thread
        )

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

    def wait(self) -> None:
        """Until all that was begun has been compiled, or cannot be."""
        wait(self._compiling.values())

    def ready(self, grammar: Grammar) -> bool:
        """Whether constraint() needs no compilation; begins one where it would. Raises
        GrammarError, GrammarsUnavailable."""
        key = _key(grammar)
        if self._kept.get(key) is not None:
            return True
        self._require_tree()
        begun = self._compiling.get(key)
        if begun is None:
            self._compiling[key] = self._thread.submit(self._compile, grammar)
            return False
        if not begun.done():
            return False
        del self._compiling[key]
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
        made = Constraint(matcher.deep_copy(), grammar, vocabulary.eos_ids, len(vocabulary.tokens))
        for token in output:
            made.append(token)
        return made

    def _require_tree(self) -> None:
        self.prepare()
        if self._unavailable:
            raise GrammarsUnavailable(self._unavailable)

    def _compile(self, grammar: Grammar) -> Matcher:
        """On any thread."""
        self._checks.check(grammar)
        return compiled(self._tree, grammar)

    def _keep(self, key: _Key, matcher: Matcher) -> None:
        self._kept.put(key, matcher, _LEAST_BYTES + _BYTES_A_LETTER * len(key[1]))


def _key(grammar: Grammar) -> _Key:
    return grammar.kind.value, grammar.source
