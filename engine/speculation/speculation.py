"""The sources of drafts (guesses of next tokens), and the choice of sources for each request."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.engine import messages as m
from tasuki.engine.forward_plan import Ints
from tasuki.model.grammar.constraint import Constraint
from tasuki.model.grammar.grammar import Grammar
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.pycache.keys import PromptTokens

from .drafting import (
    BlockDrafter,
    Chances,
    Drafter,
    Drafting,
    DraftSource,
    MtpDrafter,
    RunnerDrafter,
)

ANCHOR_TOKENS = 6
"""Number of equal tokens needed to find an earlier place in a text. Fewer would find too many
places, more too few."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class SuffixIndex:
    """An index of seen texts: it finds the last occurrence of a few tokens, and the tokens after
    it.

    Owns the newest `capacity` tokens of all texts, in a ring buffer. Owns a table of places in it,
    by a hash of the tokens before each place. Both have fixed size. A place from the table is
    checked token by token, so results are exact. A text is found only under its own salt. Otherwise
    the speed of one tenant's answers would reveal another tenant's texts. Thread rule: the engine
    loop's.
    """

    def __init__(self, capacity: int) -> None:
        """capacity: number of tokens kept."""
        bits = max(8, capacity.bit_length() + 1)
        self._shift = np.uint64(64 - bits)
        self._table: NDArray[np.int64] = np.zeros(1 << bits, dtype=np.int64)
        self._ring: Ints = np.zeros(capacity, dtype=np.int32)
        self._end = 1
        """Number of the next token's place. Places are numbered from 1 on without end."""
        self._starts: deque[int] = deque()
        self._salts: deque[bytes] = deque()

    def begin(self, salt: bytes) -> None:
        """Begin a text with its salt; the tokens appended next belong to it."""
        self._starts.append(self._end)
        self._salts.append(salt)
        while len(self._starts) > 1 and self._starts[1] <= self._oldest:
            self._starts.popleft()
            self._salts.popleft()

    def append(self, tokens: Ints) -> None:
        """Append tokens to the latest text; if more than the buffer holds, only the last ones."""
        tokens = tokens[-len(self._ring) :]
        if not len(tokens):
            return
        places = np.arange(self._end, self._end + len(tokens))
        self._ring[places % len(self._ring)] = tokens
        self._end += len(tokens)
        places = places[places >= self._starts[-1] + ANCHOR_TOKENS]
        places = places[places >= self._oldest + ANCHOR_TOKENS]
        if len(places):
            before = places[:, None] + np.arange(-ANCHOR_TOKENS, 0)
            self._table[self._slots(self._ring[before % len(self._ring)])] = places

    def follow(self, last: Sequence[int], salt: bytes, most: int) -> list[int]:
        """Return at most `most` tokens found after the last occurrence of `last` under this salt;
        none without an occurrence. last: ANCHOR_TOKENS tokens."""
        anchor = np.asarray(last, dtype=np.int32)
        place = int(self._table[self._slots(anchor[None])[0]])
        if not self._oldest + ANCHOR_TOKENS <= place < self._end:
            return []
        text = bisect_right(self._starts, place) - 1
        starts = self._starts
        if starts[text] > place - ANCHOR_TOKENS or self._salts[text] != salt:
            return []
        if not np.array_equal(self._read(place - ANCHOR_TOKENS, place), anchor):
            return []
        end = starts[text + 1] if text + 1 < len(starts) else self._end
        found: list[int] = self._read(place, min(place + most, end)).tolist()
        return found

    @property
    def _oldest(self) -> int:
        return max(1, self._end - len(self._ring))

    def _read(self, start: int, stop: int) -> Ints:
        return self._ring[np.arange(start, stop) % len(self._ring)]

    def _slots(self, anchors: Ints) -> NDArray[np.uint64]:
        """Return the hash table indices [n] of token sequences [n, ANCHOR_TOKENS]."""
        hashed = np.zeros(len(anchors), dtype=np.uint64)
        for column in anchors.T.astype(np.uint64):
            hashed = (hashed ^ column) * _FACTOR
            hashed ^= hashed >> np.uint64(29)
        return (hashed * _FACTOR) >> self._shift


_OWN_TOKENS = 1 << 17
"""Most tokens of one request in its own index; an index of this size takes 5 MiB."""


class TreeDrafter:
    """Drafts from tokens found after the same tokens before: in the prompt, the answer so far, or
    texts of ended requests with the same salt. It needs no weights. For example, an agent rewriting
    a file repeats most of it.

    Owns an index of its own request's tokens, and the number of drafts to try. The number doubles
    after all drafts were accepted and halves after none was. While it is below `least`, no drafts
    are proposed; once the first of them proves right, proposals resume. Thread rule: the engine
    loop's.
    """

    source = DraftSource.TREE

    def __init__(
        self, prompt: PromptTokens, salt: bytes, most: int, left: SuffixIndex, least: int = 1
    ) -> None:
        """most: most tokens of the answer. left: index of the texts of ended requests. least:
        smallest number of drafts worth a try, at most 2."""
        self._salt = salt
        self._left = left
        self._own = SuffixIndex(min(len(prompt) + most, _OWN_TOKENS))
        self._own.begin(salt)
        self._prompt = prompt
        self._seen = 0
        self._tail = prompt[-ANCHOR_TOKENS:].tolist()
        self._length = 2
        self._least = least
        self._watched: int | None = None

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        if not self._seen:
            self._own.append(self._prompt)
        new = list(output[self._seen :])
        self._own.append(np.array(new, dtype=np.int32))
        self._seen = len(output)
        if new and new[0] == self._watched:
            self._length = self._least
        self._watched = None
        self._tail = (self._tail + new)[-ANCHOR_TOKENS:]
        if len(self._tail) < ANCHOR_TOKENS:
            return []
        most = min(most, self._length)
        own = self._own.follow(self._tail, self._salt, most)
        found = own or self._left.follow(self._tail, self._salt, most)
        if self._length < self._least:
            self._watched = found[0] if found else None
            return []
        return found

    def verified(self, drafted: int, accepted: int) -> None:
        if accepted == drafted == self._length:
            self._length *= 2
        elif not accepted:
            self._length = max(1, self._length // 2)


_ANCHOR = 4
"""Number of the answer's last tokens used to find its lost place in the prediction again."""
_BACK, _AHEAD = 256, 2048
"""Numbers of the prediction's tokens searched before and after the old place. The search is
limited, so no prediction makes a step long."""


class PredictionDrafter:
    """Drafts from the answer predicted by the request, like OpenAI's `prediction`: an edited file
    is mostly the old file.

    Owns its place in the prediction. While the answer matches, the tokens at the place are
    proposed. After one different token the place moves on by one, as if one token replaced another.
    After a second one nothing is proposed until the answer's last tokens are found in the
    prediction again. So a difference costs the drafts of a step or two, whatever its size.
    """

    source = DraftSource.PREDICTION

    def __init__(self, prediction: Ints) -> None:
        self._prediction = prediction
        self._place = 0
        self._missed = 0
        """Number of tokens since the answer last matched the prediction."""
        self._seen = 0

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        new = output[self._seen :]
        for token in new:
            self._follow(token)
        self._seen = len(output)
        if new and self._missed > 1:
            self._find(output[-_ANCHOR:])
        if self._missed > 1:
            return []
        found: list[int] = self._prediction[self._place : self._place + most].tolist()
        return found

    def verified(self, drafted: int, accepted: int) -> None:
        """Do nothing: the answer itself shows if the drafts were right."""

    def _follow(self, token: int) -> None:
        """Move the place in the prediction past the answer's next token. Do nothing once the place
        is lost."""
        if self._missed > 1:
            return
        place = self._place
        goes_along = place < len(self._prediction) and self._prediction[place] == token
        self._place, self._missed = place + 1, 0 if goes_along else self._missed + 1

    def _find(self, last: Sequence[int]) -> None:
        """Move the place in the prediction behind the nearest occurrence of these tokens, if there
        is one."""
        first = max(0, self._place - _BACK)
        near = self._prediction[first : self._place + _AHEAD]
        if len(last) < _ANCHOR or len(near) < _ANCHOR:
            return
        windows = np.lib.stride_tricks.sliding_window_view(near, _ANCHOR)
        places = (windows == np.asarray(last, dtype=np.int32)).all(axis=1).nonzero()[0]
        if len(places):
            places += first + _ANCHOR
            self._place, self._missed = int(places[np.abs(places - self._place).argmin()]), 0


class AnswerGrammar:
    """The position of one answer in its grammar."""

    def __init__(self, grammar: Grammar, grammars: GrammarCompiler) -> None:
        self._grammar, self._grammars = grammar, grammars
        self._constraint: Constraint | None = None
        self._seen = 0

    def behind(self, output: Sequence[int]) -> Constraint:
        """Return the grammar's constraint after the tokens `output`. output: the answer so far; it
        only grows from call to call. REQUIRES: the request runs, so its grammar is compiled."""
        if self._constraint is None:
            self._constraint = self._grammars.constraint(self._grammar, ())
        for token in output[self._seen :]:
            self._constraint.append(token)
        self._seen = len(output)
        return self._constraint


class ForcedDrafter:
    """Drafts of text without alternatives in the answer's grammar, such as the key names of a
    schema. The text is proposed in the longest possible tokens.

    Follows the answer with its own constraint, made at the first use, because the constraint
    masking the logits belongs to the runner. Thread rule: the engine loop's.
    """

    source = DraftSource.GRAMMAR

    def __init__(self, grammar: AnswerGrammar) -> None:
        self._grammar = grammar

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        return self._grammar.behind(output).forced(most)

    def verified(self, drafted: int, accepted: int) -> None:
        """Do nothing: the answer itself shows if the drafts were right."""


class AllowedDrafter:
    """Proposes another drafter's tokens, up to the first one forbidden by the answer's grammar."""

    def __init__(self, drafter: Drafter, grammar: AnswerGrammar) -> None:
        self.source = drafter.source
        self._drafter = drafter
        self._grammar = grammar

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        drafts = self._drafter.propose(output, most)
        return drafts[: self._grammar.behind(output).allowed(drafts)] if drafts else []

    def verified(self, drafted: int, accepted: int) -> None:
        self._drafter.verified(drafted, accepted)


_LEFT_TOKENS = 1 << 19
"""Number of tokens of ended requests kept for the tree drafter; their index takes 18 MiB."""


class Speculation:
    """A node's choice of the requests with drafts, and of the drafts' sources.

    Owns the tokens of ended requests, for drafts of others, if `from_tree`. Thread rule: the engine
    loop's.
    """

    def __init__(
        self,
        draft_tokens: int = 0,
        *,
        from_tree: bool = False,
        by_layer: bool = False,
        by_block: bool = False,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """draft_tokens: most drafts per forward and request; 0: no drafts. from_tree: True to draft
        from earlier texts. by_layer: True to draft by the model's draft layer. by_block: True to
        draft by a block drafter. Without all, only predictions and grammars give drafts. grammars:
        compiled grammars of answers; None: none."""
        self._draft_tokens = draft_tokens
        self._grammars = grammars
        self._by_layer = by_layer
        self._by_block = by_block
        self._chances = {source: Chances() for source in DraftSource}
        """Acceptance rates by source, over all requests with this source first."""
        self._left = SuffixIndex(_LEFT_TOKENS) if draft_tokens and from_tree else None

    def drafting(self, message: m.Submit) -> Drafting | None:
        """Return the drafting of the message's answer; None if no draft is possible. An answer with
        a grammar gets no draft layer and no block drafter."""
        drafters: list[Drafter] = []
        if len(message.prediction):
            drafters.append(PredictionDrafter(message.prediction))
        by_runner = self._runner_drafter(message)
        if self._left is not None:
            most = message.sampling.max_new_tokens
            # This source goes before the layer, because it costs nothing and may be right for
            # longer. While its last drafts were wrong, the layer drafts.
            least = 1 if by_runner is None else 2
            tokens = PromptTokens(message.prompt)
            drafters.append(TreeDrafter(tokens, message.salt, most, self._left, least))
        if by_runner is not None:
            drafters.append(by_runner)
        if message.sampling.grammar is not None and self._grammars is not None:
            grammar = AnswerGrammar(message.sampling.grammar, self._grammars)
            drafters = [AllowedDrafter(drafter, grammar) for drafter in drafters]
            drafters.append(ForcedDrafter(grammar))
        if not drafters or not self._draft_tokens:
            return None
        prior = self._chances[drafters[0].source]
        return Drafting(drafters, self._draft_tokens, by_runner, prior)

    def _runner_drafter(self, message: m.Submit) -> RunnerDrafter | None:
        """Return the drafter of drafts made by the runner; None without one. An answer with a
        grammar has none, because such drafts do not know its limits."""
        if message.sampling.grammar is not None:
            return None
        if self._by_block:
            return BlockDrafter()
        return MtpDrafter() if self._by_layer else None

    @property
    def remembers(self) -> bool:
        """True if the tokens of ended requests are kept for drafts of other requests."""
        return self._left is not None

    def ended(self, tokens: PromptTokens, salt: bytes, known: int) -> None:
        """Keep a request's prompt and answer for drafts of other requests. known: number of first
        tokens kept before. REQUIRES: `remembers` is True."""
        assert self._left is not None
        self._left.begin(salt)
        self._left.append(tokens[max(0, known - ANCHOR_TOKENS) :])
