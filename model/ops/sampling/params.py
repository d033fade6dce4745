"""Sampling parameters of a request.

Owns the fields and their limits. Invariant: every instance fits a row of a batch
(engine/runner/device_batch.py: 32 bits a number), so a runner can store every value. Pure values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from tasuki.model.grammar.grammar import Grammar

from .thinking_budget import ThinkingBudget

MAX_TOP_K = 2**31 - 1
MIN_TEMPERATURE = 1e-5
"""Least temperature above 0. Below it, sampling would be greedy for any logits distinct in
float32."""
MAX_TEMPERATURE = 100.0
"""Highest temperature allowed. Above it, the noise exceeds the precision of the logit in
float32."""
MIN_TOP_P = 1e-6
"""Least top_p allowed. With it, only one token remains in any vocabulary of up to a million
tokens."""
MAX_PENALTY = 2.0
"""Largest absolute value of presence and frequency penalties, as for OpenAI and vLLM."""
MIN_REPETITION_PENALTY = 1e-3
MAX_REPETITION_PENALTY = 1e3
"""Largest repetition penalty; MIN_REPETITION_PENALTY is the least. Between them, a penalised
float32 logit stays finite."""
MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 64
MAX_ALLOWED_TOKENS = 1 << 14
MAX_TOP_LOGPROBS = 20

TopLogprobs = tuple[tuple[int, float], ...]
"""Pairs of a token id and its logprob, the likeliest token first."""


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of one request's sampling.

    max_new_tokens: 0 computes the prompt and samples nothing. temperature: 0 is greedy. top_k 0,
    top_p 1 and min_p 0 keep every token. Noise is a function of (seed, position) only, so any split
    of the work over nodes or batches samples the same tokens. The fields from min_p on (except
    top_logprobs) change the logits before sampling, as defined in logit_adjustments.py, in its
    order. top_logprobs: number of the likeliest tokens reported with their logprobs for each
    sampled token. bad_words: sequences of token ids. allowed_token_ids: empty allows every token.
    grammar: the answer must match it, or is the beginning of a match if another limit ends it.
    thinking: budget of thinking tokens; None: unlimited.

    Raises ValueError if a value is outside its limits; the message begins with the field's name.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    top_logprobs: int = 0
    grammar: Grammar | None = None
    thinking: ThinkingBudget | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be at least 0, not {self.max_new_tokens}")
        if not (self.temperature == 0 or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise ValueError(
                f"temperature must be 0, or in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE:g}], not "
                f"{self.temperature}"
            )
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"top_k must be 0 or more, and at most {MAX_TOP_K}, not {self.top_k}")
        if not MIN_TOP_P <= self.top_p <= 1:
            raise ValueError(f"top_p must be in [{MIN_TOP_P}, 1], not {self.top_p}")
        self._check_adjustments()
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ValueError(
                f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], not {self.top_logprobs}"
            )

    def _check_adjustments(self) -> None:
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be in [0, 1], not {self.min_p}")
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            if not -MAX_PENALTY <= value <= MAX_PENALTY:
                raise ValueError(
                    f"{name} must be in [{-MAX_PENALTY:g}, {MAX_PENALTY:g}], not {value}"
                )
        if not MIN_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY:
            raise ValueError(
                f"repetition_penalty must be in [{MIN_REPETITION_PENALTY:g}, "
                f"{MAX_REPETITION_PENALTY:g}], not {self.repetition_penalty}"
            )
        if not 0 <= self.min_tokens <= self.max_new_tokens:
            raise ValueError(
                f"min_tokens must be in [0, {self.max_new_tokens}], the most tokens of the answer, "
                f"not {self.min_tokens}"
            )
        self._check_bias()
        _check_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise ValueError(
                f"bad_words must hold at most {MAX_BAD_WORDS} sequences, not {len(self.bad_words)}"
            )
        for word in self.bad_words:
            if not word:
                raise ValueError("bad_words must hold sequences of at least one token")
            _check_ids("bad_words", word, MAX_BAD_WORD_TOKENS)

    def _check_bias(self) -> None:
        tokens = [token for token, _ in self.logit_bias]
        _check_ids("logit_bias", tokens, MAX_BIASES)
        if len(set(tokens)) < len(tokens):
            raise ValueError("logit_bias must name a token once")
        for token, bias in self.logit_bias:
            if not -MAX_BIAS <= bias <= MAX_BIAS:
                raise ValueError(
                    f"logit_bias must be in [{-MAX_BIAS:g}, {MAX_BIAS:g}], not {bias} for token "
                    f"{token}"
                )

    @property
    def draws(self) -> bool:
        """Return true if any token is to be sampled."""
        return self.max_new_tokens > 0

    @property
    def thinking_tokens(self) -> int | None:
        """Return the largest number of thinking tokens; None: unlimited."""
        return None if self.thinking is None else self.thinking.most

    @property
    def named_tokens(self) -> dict[str, tuple[int, ...]]:
        """Return the token ids named by each field that changes logits. All must be in the
        vocabulary."""
        return {
            "logit_bias": tuple(token for token, _ in self.logit_bias),
            "bad_words": tuple(token for word in self.bad_words for token in word),
            "allowed_token_ids": self.allowed_token_ids,
            "grammar": () if self.grammar is None else self.grammar.tokens,
            "thinking": () if self.thinking is None else self.thinking.tokens,
        }

    @cached_property
    def adjusts(self) -> bool:
        """Return true if these parameters may change the logits of some token before it is
        sampled."""
        return self.thinking is not None or self.adjusts_every_draw

    @cached_property
    def adjusts_every_draw(self) -> bool:
        """Return true if these parameters may change the logits of every token. A thinking budget
        alone changes them at few tokens (ThinkingBudget.rules)."""
        return bool(
            (self.min_p and self.temperature)
            or self._rules_follow_output
            or self.logit_bias
            or self.bad_words
            or self.allowed_token_ids
        )

    @cached_property
    def follows_output(self) -> bool:
        """Return true if the changes of logits depend on earlier tokens."""
        return self.thinking is not None or self._rules_follow_output

    @property
    def _rules_follow_output(self) -> bool:
        """Return true if a change applied to every token's logits depends on earlier tokens; a
        thinking budget does not count."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1
            or self.min_tokens
            or self.grammar is not None
            or any(len(word) > 1 for word in self.bad_words)
        )


def _check_ids(field: str, ids: Sequence[int], most: int) -> None:
    if len(ids) > most:
        raise ValueError(f"{field} must hold at most {most} tokens, not {len(ids)}")
    for token in ids:
        if not 0 <= token < 2**31:
            raise ValueError(f"{field} must hold token ids, not {token}")
