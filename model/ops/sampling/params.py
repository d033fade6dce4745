"""How the next token is drawn.

Owns what a request may ask of a draw and the bounds within which a row of a batch can hold it
(engine/runner/device_batch.py: 32 bits a number). Invariant: whatever exists fits a row, so that no
runner meets a value that it cannot store. Pure values.
"""

from dataclasses import dataclass

MAX_TOP_K = 2**31 - 1
MIN_TEMPERATURE = 1e-5
"""Below it a draw is the greedy one for all logits that differ in float32."""
MAX_TEMPERATURE = 100.0
"""Above it float32 loses the logit in the noise."""
MIN_TOP_P = 1e-6
"""Below it one token is left of any vocabulary of at most a million, as at it."""


@dataclass(frozen=True)
class SamplingParams:
    """temperature 0 is greedy. top_k 0 and top_p 1 keep every token. Noise is a function of (seed,
    position) only, so that any split of the work over nodes or batches draws the same tokens.

    Raises ValueError that begins with the field's name where no row could hold it.
    """

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if not (self.temperature == 0 or MIN_TEMPERATURE <= self.temperature <= MAX_TEMPERATURE):
            raise ValueError(
                f"temperature must be 0, or in [{MIN_TEMPERATURE}, {MAX_TEMPERATURE:g}], not "
                f"{self.temperature}"
            )
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise ValueError(f"top_k must be 0 or more, and at most {MAX_TOP_K}, not {self.top_k}")
        if not MIN_TOP_P <= self.top_p <= 1:
            raise ValueError(f"top_p must be in [{MIN_TOP_P}, 1], not {self.top_p}")
