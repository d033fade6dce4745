"""What clients write of sampling, as a row of a batch can hold it.

Pure. A number that means the same as one within the bounds (model/ops/sampling/params.py) becomes
that one: clients write 2^31 - 1 and more for "every token", and next to nothing for "greedy". What
means something else is SamplingParams' to refuse."""

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
