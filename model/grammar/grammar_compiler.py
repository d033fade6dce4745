"""The compiled grammars of an engine. Each is tried first in a separate process, then compiled on
threads here, and cached.

Owns the vocabulary's token tree, the threads, and the compiled grammars. Thread rule: only the
engine loop calls it; the threads compile and touch nothing else.

Invariants:

- Only a source with a passed trial (trials/) is compiled here.
- The loop never waits for a trial or a compilation: ready() begins them and returns.
- A grammar is kept while a request waits for it or uses it.
- The other compiled grammars take at most the capacity, by the memory measured in their trials. A
  dropped one is compiled again on request, with the same masks.
- Only grammars with waiting requests are compiled (retain), with fair shares for the callers.
- Answers with one grammar share its lexer. A spent lexer (its states have reached the bound) gets
  no new request. A running answer continues with a fresh lexer if it is quickly made.
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
"""Bytes counted for each character of a grammar's source, if its trial measured less."""

_THREADS = 2
_LARGE_VOCABULARY = 1 << 15
"""Number of tokens in a large vocabulary. With more tokens the trial server needs over a second to
start, so it starts with the node."""
_NO_TOKENS = Vocabulary((), ())

_QUICK_SECONDS = 0.02
"""Longest compilation, in seconds, allowed to block a running answer."""

_Key = tuple[str, str]

Wanted = tuple[str, Grammar]
"""A pair of a caller's name and a grammar awaited or used by one of the caller's requests."""


@dataclass
class _Compiled:
    """A compiled grammar. seconds: processor time of its compilation. held_bytes: memory in bytes,
    as measured in its trial. is_spent: its lexer takes no more states."""

    matcher: Matcher
    seconds: float
    held_bytes: int = 0
    is_spent: bool = False


class _Begun:
    """A grammar being prepared: first its trial, then its compilation."""

    def __init__(self, trial: "Future[Verdict]") -> None:
        self.trial = trial
        self.matcher: Future[_Compiled] | None = None

    @property
    def is_over(self) -> bool:
        """Return true if the preparation has ended, with a compiled grammar or an error."""
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
        """vocabulary: the model's vocabulary; None if its checkpoint has no tokenizer. cache_bytes:
        capacity of the cache of compiled grammars. trials: client of a trial server; None: this
        engine starts its own server."""
        self.vocabulary = vocabulary
        self._tree: Any = None
        self._unavailable = ""
        self.trials = trials or GrammarTrials.of(vocabulary or _NO_TOKENS)
        """The client of the server for trying grammars; any thread may use it. An API server of
        this node uses the same client, so no source is tried twice."""
        self._kept: BoundedCache[_Key, _Compiled] = BoundedCache(cache_bytes)
        self._used: dict[_Key, _Compiled] = {}
        """Compiled grammars of the living requests, as of the last retain()."""
        self._begun: dict[tuple[str, _Key], _Begun] = {}
        self._threads = FairThreads(_THREADS, 1, "tasuki-grammars")

    def prepare(self) -> None:
        """Build the vocabulary's token tree and find its unfinished tokens, before any request
        waits. It takes a second for a large vocabulary, and no other Python thread runs meanwhile.
        Without this call the first grammar waits for it."""
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
        """Return the vocabulary's unfinished tokens (they end inside a UTF-8 character); None
        without a vocabulary."""
        return None if self.vocabulary is None else self.vocabulary.unfinished

    @property
    def compiling(self) -> bool:
        """Return true if the trial or compilation of a requested grammar is still running."""
        return any(not begun.is_over for begun in self._begun.values())

    @property
    def kept(self) -> int:
        """Return the number of compiled grammars in the cache."""
        return len(self._kept)

    @property
    def held(self) -> int:
        """Return the number of grammars begun by ready() and not yet returned to a request: in
        trial, in compilation, or finished."""
        return len(self._begun)

    def wait(self) -> None:
        """Wait until every grammar begun by ready() is compiled or rejected."""
        for begun in self._begun.values():
            begun.trial.result()
        for caller, key in [*self._begun]:
            self._advance(caller, key)
        wait([begun.matcher for begun in self._begun.values() if begun.matcher is not None])

    def retain(self, wanted: Iterable[Wanted]) -> None:
        """Cancel the trials and compilations needed by no living request. wanted: the grammars of
        every living request, with their callers."""
        kept = {(caller, _key(grammar)) for caller, grammar in wanted}
        for begun in self._begun.keys() - kept:
            self._begun.pop(begun).cancel()
        keys = {key for _, key in kept}
        for unused in self._used.keys() - keys:
            del self._used[unused]

    def give_up(self, reason: str) -> None:
        """End every unfinished trial with GrammarsBusy. reason: text for the callers."""
        self.trials.give_up(reason)

    def ready(self, grammar: Grammar, caller: str = "") -> bool:
        """Return true if the grammar is compiled, so that constraint() need not wait. Otherwise
        begin or continue its trial and compilation, and return false. caller: name of the client
        charged for the use of threads. Raises GrammarError, GrammarsBusy, GrammarsUnavailable."""
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
        """Return the constraint of an answer by this grammar, after the tokens `output`. REQUIRES:
        ready() returned true for the grammar, or its source is trusted. Raises GrammarError,
        GrammarsUnavailable."""
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
        """Return the function with which one answer gets a matcher with a fresh lexer, once its
        last lexer is spent."""
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
        """Return the compiled grammar with another lexer than the spent one. Compile it now if
        needed. Return None if the compilation would block the engine's loop too long."""
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
        """Start to compile a grammar on a thread, if its trial has passed."""
        begun = self._begun[caller, key]
        if begun.matcher is None and begun.trial.done() and not begun.trial.result().reason:
            grammar = Grammar(GrammarKind(key[0]), key[1])
            begun.matcher = self._threads.submit(caller, partial(_timed, self._tree, grammar))

    def _keep(self, key: _Key, made: _Compiled) -> None:
        least = _LEAST_BYTES + _BYTES_A_LETTER * len(key[1])
        self._kept.put(key, made, max(least, made.held_bytes))


def _timed(tree: Any, grammar: Grammar) -> _Compiled:
    """Compile the grammar, and return it with the processor time taken. Any thread may call it.
    Raises GrammarError."""
    begun = time.thread_time()
    matcher = compiled(tree, grammar)
    return _Compiled(matcher, time.thread_time() - begun)


def _key(grammar: Grammar) -> _Key:
    return grammar.kind.value, grammar.source
