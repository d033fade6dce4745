"""The grammars of an engine: tried first, then compiled on threads of its own, and kept.

Owns the vocabulary's tree, the threads, and the compiled grammars. Thread rule: the engine loop's;
the threads here compile and touch nothing else.

Invariants:

- Only a source that passed its trial (trials/) is compiled here.
- The loop never waits for a trial or a compilation: ready() begins them and returns.
- A grammar is kept while a request waits for it or uses it.
- The other compiled grammars take at most the capacity, by the memory measured in their trials. A
  dropped one is compiled again on request, with the same masks.
- Only grammars with waiting requests are compiled (retain), in turns of the callers.
- Answers by one grammar share its lexer. A lexer with its number of states at the bound gets no new
  request. A running answer continues with a fresh lexer if it is quickly made.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any

from tasuki.utils.bounded_cache import BoundedCache
from tasuki.utils.fair_threads import FairThreads

from .compiled_grammar import Matcher, compiled, token_tree
from .constraint import Constraint, Renew
from .grammar import Grammar, GrammarKind, GrammarsUnavailable
from .trials.client import GrammarTrials, outcome_raised
from .trials.messages import Verdict
from .vocabulary import UnfinishedTokens, Vocabulary

DEFAULT_CACHE_BYTES = 256 << 20
_LEAST_BYTES = 256 << 10
_BYTES_A_LETTER = 64
"""Bytes counted for a letter of a grammar's source: a lower bound if its trial measured less."""

_THREADS = 2
_LARGE_VOCABULARY = 1 << 15
"""Tokens. With more, the trial server takes over a second to start, and starts with the node."""
_NO_TOKENS = Vocabulary((), ())

_QUICK_SECONDS = 0.02
"""Longest compilation, in seconds, to hold up a running answer."""

_Key = tuple[str, str]

Wanted = tuple[str, Grammar]
"""A caller, and a grammar needed or followed by one of its requests."""


@dataclass
class _Compiled:
    """A compiled grammar. seconds: processor time of the compilation. held_bytes: see Verdict.
    is_spent: its lexer takes no more states."""

    matcher: Matcher
    seconds: float
    held_bytes: int = 0
    is_spent: bool = False


class _Begun:
    """A grammar on its way: its trial, then its compilation."""

    def __init__(self, trial: "Future[Verdict]") -> None:
        self.trial = trial
        self.matcher: Future[_Compiled] | None = None

    @property
    def is_over(self) -> bool:
        """Return whether advance() would end it, with a matcher or an error."""
        if self.matcher is not None:
            return self.matcher.done()
        return self.trial.done() and bool(self.trial.result().reason)

    def cancel(self) -> None:
        self.trial.cancel()
        if self.matcher is not None:
            self.matcher.cancel()


class GrammarCompiler:
    def __init__(
        self,
        vocabulary: Vocabulary | None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        trials: GrammarTrials | None = None,
    ) -> None:
        """vocabulary: of the model; None if its checkpoint has no tokenizer. trials: the client of
        a trial server; None: this engine starts its own server."""
        self.vocabulary = vocabulary
        self._tree: Any = None
        self._unavailable = ""
        self.trials = trials or GrammarTrials.of(vocabulary or _NO_TOKENS)
        """The client of the trial server, usable on any thread. An API server of this node uses the
        same trials, so no source is tried twice."""
        self._kept: BoundedCache[_Key, _Compiled] = BoundedCache(cache_bytes)
        self._used: dict[_Key, _Compiled] = {}
        """Grammars of living requests, as of the last retain()."""
        self._begun: dict[tuple[str, _Key], _Begun] = {}
        self._threads = FairThreads(_THREADS, 1, "tasuki-grammars")

    def prepare(self) -> None:
        """Build the vocabulary's tree and find its unfinished tokens, before any request waits. It
        takes a second for a large vocabulary. No other thread runs meanwhile. Without this call the
        first grammar waits for it."""
        if self._tree is not None or self._unavailable:
            return
        if self.vocabulary is None:
            self._unavailable = (
                "grammars need the text of each token: this checkpoint has no byte-level "
                "tokenizer.json"
            )
            return
        _ = self.unfinished_tokens
        if len(self.vocabulary.tokens) > _LARGE_VOCABULARY:
            self.trials.warm_up()
        try:
            self._tree = token_tree(self.vocabulary)
        except GrammarsUnavailable as error:
            self._unavailable = str(error)

    @property
    def unfinished_tokens(self) -> UnfinishedTokens | None:
        """Return the vocabulary's unfinished tokens; None without a vocabulary."""
        return None if self.vocabulary is None else self.vocabulary.unfinished

    @property
    def compiling(self) -> bool:
        """Return true if a requested grammar is not ready yet."""
        return any(not begun.is_over for begun in self._begun.values())

    @property
    def kept(self) -> int:
        """Return the number of compiled grammars in the cache."""
        return len(self._kept)

    @property
    def held(self) -> int:
        """Return the number of grammars in trial or compilation, or finished and not requested
        again."""
        return len(self._begun)

    def wait(self) -> None:
        """Wait until every begun grammar is compiled or rejected."""
        for begun in self._begun.values():
            begun.trial.result()
        for caller, key in [*self._begun]:
            self._advance(caller, key)
        wait([begun.matcher for begun in self._begun.values() if begun.matcher is not None])

    def retain(self, wanted: Iterable[Wanted]) -> None:
        """Cancel begun grammars not wanted any more. wanted: of every living request."""
        kept = {(caller, _key(grammar)) for caller, grammar in wanted}
        for begun in self._begun.keys() - kept:
            self._begun.pop(begun).cancel()
        keys = {key for _, key in kept}
        for unused in self._used.keys() - keys:
            del self._used[unused]

    def give_up(self, reason: str) -> None:
        """End every trial with a waiting request. reason: for its caller."""
        self.trials.give_up(reason)

    def ready(self, grammar: Grammar, caller: str = "") -> bool:
        """Return true if constraint() needs no compilation. Otherwise begin or continue one, in the
        caller's turn. Raises GrammarError, GrammarsBusy, GrammarsUnavailable."""
        key = _key(grammar)
        found = self._found(key)
        if found is not None and not found.is_spent:
            self._used[key] = found
            return True
        self._require_tree()
        if (caller, key) not in self._begun:
            trial = self.trials.verdict(caller, grammar.kind, grammar.source)
            self._begun[caller, key] = _Begun(trial)
        begun = self._begun[caller, key]
        if begun.trial.done() and begun.trial.result().reason:
            del self._begun[caller, key]
            outcome_raised(begun.trial.result())
        self._advance(caller, key)
        if begun.matcher is None or not begun.matcher.done():
            return False
        del self._begun[caller, key]
        made = begun.matcher.result()
        made.held_bytes = begun.trial.result().held_bytes
        self._used[key] = made
        self._keep(key, made)
        return True

    def constraint(self, grammar: Grammar, output: Iterable[int]) -> Constraint:
        """Return the constraint behind `output`. REQUIRES: ready() returned True for the grammar,
        or its source is trusted. Raises GrammarError, GrammarsUnavailable."""
        key = _key(grammar)
        found = self._found(key)
        if found is None:
            self._require_tree()
            found = _timed(self._tree, grammar)
            self._keep(key, found)
        vocabulary = self.vocabulary
        assert vocabulary is not None
        made = Constraint(
            found.matcher.deep_copy(),
            grammar,
            vocabulary.eos_ids,
            vocabulary.tokens,
            self._renewals(grammar, found),
        )
        for token in output:
            made.append(token)
        return made

    def _renewals(self, grammar: Grammar, first: _Compiled) -> Renew:
        """Return the call for a fresh lexer of one answer, once its last one is spent."""
        last = first

        def fresh() -> Matcher | None:
            nonlocal last
            found = self._fresh(grammar, last)
            if found is None:
                return None
            last = found
            return found.matcher.deep_copy()

        return fresh

    def _fresh(self, grammar: Grammar, spent: _Compiled) -> _Compiled | None:
        """Return the grammar with another lexer than the spent one. Return None if compiling it
        would hold the loop too long."""
        key = _key(grammar)
        spent.is_spent = True
        found = self._found(key)
        if found is not None and not found.is_spent:
            return found
        if spent.seconds > _QUICK_SECONDS:
            return None
        made = _timed(self._tree, grammar)
        made.held_bytes = spent.held_bytes
        # Use the least of several, because the next one may be made while the machine is busy.
        made.seconds = min(made.seconds, spent.seconds)
        if key in self._used:
            self._used[key] = made
        self._keep(key, made)
        return made

    def _found(self, key: _Key) -> _Compiled | None:
        found = self._kept.get(key)
        return self._used.get(key) if found is None else found

    def _require_tree(self) -> None:
        self.prepare()
        if self._unavailable:
            raise GrammarsUnavailable(self._unavailable)

    def _advance(self, caller: str, key: _Key) -> None:
        """Start to compile a grammar after its trial passed."""
        begun = self._begun[caller, key]
        if begun.matcher is None and begun.trial.done() and not begun.trial.result().reason:
            grammar = Grammar(GrammarKind(key[0]), key[1])
            begun.matcher = self._threads.submit(caller, partial(_timed, self._tree, grammar))

    def _keep(self, key: _Key, made: _Compiled) -> None:
        least = _LEAST_BYTES + _BYTES_A_LETTER * len(key[1])
        self._kept.put(key, made, max(least, made.held_bytes))


def _timed(tree: Any, grammar: Grammar) -> _Compiled:
    """Compile it. On any thread. Raises GrammarError."""
    begun = time.thread_time()
    matcher = compiled(tree, grammar)
    return _Compiled(matcher, time.thread_time() - begun)


def _key(grammar: Grammar) -> _Key:
    return grammar.kind.value, grammar.source
