"""A client's sampling fields, brought within the bounds of a batch row.

Pure. A number beyond the bounds of model/ops/sampling/params.py becomes the one within them that
means the same: clients write 2^31 - 1 and more for "every token", and tiny temperatures for
"greedy". SamplingParams refuses the others."""

from tasuki.model.ops.sampling.params import MIN_TEMPERATURE, MIN_TOP_P, SamplingParams


def asked_sampling(
    vocab_size: int,
    *,
    max_new_tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop_token_ids: tuple[int, ...],
    ignore_eos: bool,
) -> SamplingParams:
    """Raises ValueError that begins with the field's name."""
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=0.0 if 0 < temperature < MIN_TEMPERATURE else temperature,
        top_k=0 if top_k >= vocab_size else top_k,
        top_p=MIN_TOP_P if 0 < top_p < MIN_TOP_P else top_p,
        seed=seed,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
    )
