"""How many bytes of memory a request keeps until its reply ends.

Pure functions; any thread. Invariant: each takes time linear in what it measures.
"""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from tasuki.engine.messages import Submit

ANSWER_BYTES = 1 << 15
"""Of each answer: its tasks, its parser, its reply's head, and what waits in its connection."""

_NUMBER_BYTES = 48
"""Of a number in a tuple, with the tuple's share."""
_PAIR_BYTES = 120
_SCORE_BYTES = 12
"""Of a token id and a float64 in the engine's columns; of a logprob and a rank too."""
_WRITTEN_SCORE_BYTES = 200
"""Of one token's logprob in the reply's JSON, while the reply is written."""


def submit_bytes(submit: Submit) -> int:
    """Return the memory of a request to the engine, and of each of its answers."""
    sampling = submit.sampling
    arrays = submit.prompt.nbytes + submit.prediction.nbytes
    numbers = len(submit.marks) + len(sampling.stop_token_ids) + len(sampling.allowed_token_ids)
    numbers += sum(1 + len(word) for word in sampling.bad_words)
    source = 0 if sampling.grammar is None else sys.getsizeof(sampling.grammar.source)
    answers = ANSWER_BYTES * len(submit.answer_ids)
    pairs = _PAIR_BYTES * len(sampling.logit_bias)
    return arrays + _NUMBER_BYTES * numbers + pairs + source + answers


def score_bytes(submit: Submit, written: int = 0) -> int:
    """Return the memory of the scores of the prompt's tokens; 0 where none are asked for.

    written: how often the reply holds them in JSON.
    """
    if submit.prompt_logprobs is None:
        return 0
    scores = len(submit.prompt) * (submit.prompt_logprobs + 1)
    return scores * (_SCORE_BYTES + _WRITTEN_SCORE_BYTES * written)


def ids_bytes(prompts: Sequence[msgspec.Raw] | None) -> int:
    """Return the memory of prompts' token ids as JSON, and of their copies in a reply. None: they
    are not shown."""
    return 0 if prompts is None else sum(2 * len(bytes(ids)) for ids in prompts)


def value_bytes(value: Any) -> int:
    """Return the memory of a JSON value's objects, each counted as often as it is named."""
    size = 0
    waiting: list[Any] = [value]
    while waiting:
        found = waiting.pop()
        size += sys.getsizeof(found)
        if isinstance(found, dict):
            size += sum(map(sys.getsizeof, found))
            waiting.extend(found.values())
        elif isinstance(found, Sequence) and not isinstance(found, str | bytes):
            waiting.extend(found)
    return size
