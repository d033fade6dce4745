"""Checks of every request's fields against their bounds, independent of its protocol. Pure
functions."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict, Unpack
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.messages import Fork, RequestId, Targets, Tokens
from tasuki.model.ops.sampling.params import MIN_TEMPERATURE, MIN_TOP_P, SamplingParams
from tasuki.server.text.text_codec import TextCodec

from .errors import InvalidField, InvalidRequest, PictureMissing, PromptTooLong

MAX_CHOICES = 128
"""Largest number of answers to one prompt, as at OpenAI."""
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_REQUEST_ID = 256
MAX_STOP_TOKENS = 256
TARGET_HEADERS = {
    "x-slo-ttft-ms": "first_token",
    "x-slo-tpot-ms": "per_token",
    "x-slo-e2e-ms": "answer",
}
"""Latency targets by HTTP header: fields of Targets. Header values are milliseconds. The first two
headers are llm-d's."""


class LogitFields(TypedDict, total=False):
    """A client's changes to its answer's logits, as fields of SamplingParams. A missing one has its
    default. model/ops/sampling/logit_adjustments.py has their meaning."""

    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    min_tokens: int
    bad_words: tuple[tuple[int, ...], ...]
    allowed_token_ids: tuple[int, ...]


def read_request_id(request_id: str) -> RequestId:
    """Return the client's request id, or a new id for an empty one. Raises InvalidRequest for a
    long or non-ASCII one."""
    if len(request_id) > MAX_REQUEST_ID or not request_id.isprintable() or not request_id.isascii():
        raise InvalidRequest(
            f"request_id must be at most {MAX_REQUEST_ID} printable ASCII characters, or empty"
        )
    return RequestId(request_id or uuid4().hex)


def forks_of(request_id: RequestId, choices: range, seed: int) -> tuple[Fork, ...]:
    """Return all answers to one prompt except the first, as forks of its request. choices: the
    answers' positions in the reply. seed: seed of the first answer; the others add 1 each, as in
    vLLM, and wrap in 64 bits with sign."""
    return tuple(
        Fork(choice_id(request_id, place), (seed + fork + 2**63) % 2**64 - 2**63)
        for fork, place in enumerate(choices[1:], 1)
    )


def choice_id(request_id: RequestId, place: int) -> RequestId:
    """Return the id of the answer at index `place` of a request. The first answer has the request's
    own id, for lookups."""
    return RequestId(f"{request_id}-{place}") if place else request_id


def check_length(field: str, tokens: int, codec: TextCodec) -> None:
    if tokens >= codec.max_tokens:
        raise PromptTooLong(
            f"{field} has {tokens} tokens, and the model's context is {codec.max_tokens} with the "
            "answer: "
            "send less",
            field,
        )


def check_answer_fits(
    fields: Mapping[str, int | None], prompt_tokens: int, new_tokens: int, most: int
) -> None:
    """Raise PromptTooLong if the answer does not fit, but the prompt does, and the client set the
    answer's length. fields: by name, values of possible sources of new_tokens; None: not given.
    most: limit of a prompt and its answer together, in tokens."""
    asked = next((name for name, value in fields.items() if value is not None), None)
    # The last token of an answer needs no space in the context.
    fit = most - prompt_tokens + 1
    if asked is not None and 0 < fit < new_tokens:
        raise PromptTooLong(
            f"{asked} is {new_tokens}, and behind a prompt of {prompt_tokens} tokens at most {fit} "
            "fit: ask for fewer, or shorten the prompt",
            asked,
        )


def checked_prediction(tokens: Sequence[int], codec: TextCodec) -> Tokens:
    """Return the client's prediction of the answer, for the Submit. The model computes its tokens,
    so all must be in its vocabulary. Raises PromptTooLong, InvalidField."""
    check_length("prediction", len(tokens), codec)
    found = np.array(tokens, dtype=np.int32)
    check_vocabulary("prediction", found, codec.vocab_size)
    return found


def read_targets(headers: Callable[[str], Sequence[str]]) -> Targets:
    """Return the latency targets in the headers x-slo-*, if any. headers: returns the values of one
    header; the last counts. Raises InvalidField."""
    given = {}
    for name, field in TARGET_HEADERS.items():
        if values := headers(name):
            given[field] = _milliseconds(name, values[-1])
    return Targets(**given)


def _milliseconds(header: str, value: str) -> float:
    """Return the header's number of milliseconds, in seconds."""
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = math.nan
    return check_seconds(header, milliseconds / 1000, f"milliseconds, not {value!r:.40}")


def check_seconds(field: str, seconds: float, wanted: str) -> float:
    """Return `seconds` unchanged. Raises InvalidField unless they are positive and finite. wanted:
    unit of the field, for the message."""
    if not 0 < seconds < math.inf:
        raise InvalidField(field, f"must be a positive number of {wanted}")
    return seconds


def check_priority(priority: int) -> int:
    """Return the priority unchanged. Raises InvalidField outside 32 bits with sign, as in gRPC."""
    if not -(2**31) <= priority < 2**31:
        raise InvalidField("priority", f"must be in [-2^31, 2^31), not {priority}")
    return priority


def check_stops(field: str, stops: Sequence[object]) -> tuple[str, ...]:
    """Return the stop strings of an answer, checked. Raises InvalidField."""
    if len(stops) > MAX_STOPS:
        raise InvalidField(field, f"may hold at most {MAX_STOPS} strings")
    texts = tuple(text for text in stops if isinstance(text, str))
    if len(texts) < len(stops) or not all(0 < len(text) <= MAX_STOP_CHARACTERS for text in texts):
        raise InvalidField(field, f"must hold strings of 1 to {MAX_STOP_CHARACTERS} characters")
    return texts


def to_tokens(field: str, ids: Sequence[object]) -> Tokens:
    """Return a JSON list as int32 tokens. A float without a fraction is an integer, as in JSON
    Schema. Raises InvalidField for any other item and for integers outside [0, 2^31)."""
    try:
        # Not one by one, because a prompt of thousands would hold the interpreter for long.
        kinds = set(map(type, ids))
        if kinds <= {int}:
            tokens = np.array(ids, dtype=np.int32)
            if not len(tokens) or tokens.min() >= 0:
                return tokens
        elif kinds <= {int, float}:
            numbers = np.array(ids, dtype=np.float64)
            if ((numbers >= 0) & (numbers < 2**31) & (numbers == np.floor(numbers))).all():
                return numbers.astype(np.int32)
    except OverflowError:
        pass
    wrong = next(token for token in ids if not _is_token_id(token))
    raise InvalidField(field, f"must hold token ids, not {wrong!r:.40}")


def _is_token_id(value: object) -> bool:
    if type(value) not in (int, float):
        return False
    assert isinstance(value, int | float)
    return 0 <= value < 2**31 and value == int(value)


def check_prompt_ids(
    field: str,
    tokens: NDArray[np.int32] | NDArray[np.int64],
    vocab_size: int,
    placeholders: frozenset[int],
    within: str = "",
) -> None:
    """Check a caller's token ids before they enter a prompt. A sampled id needs no check: it is
    text. placeholders: ids that stand for pictures. within: index of the prompt among those of
    the field, such as `[1]`. Raises InvalidField, PictureMissing."""
    check_vocabulary(field, tokens, vocab_size)
    if not placeholders:
        return
    found = np.isin(tokens, sorted(placeholders))
    if found.any():
        place = int(found.argmax())
        raise PictureMissing(
            f"{field}{within}[{place}]",
            f"is {tokens[place]}, the placeholder of a picture: send the picture itself, not its "
            "id",
        )


def check_vocabulary(
    field: str, tokens: NDArray[np.int32] | NDArray[np.int64], vocab_size: int
) -> None:
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise InvalidField(
            field,
            f"has {int(outside[0])}, which is outside the vocabulary: use ids in [0, {vocab_size})",
        )


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
    top_logprobs: int = 0,
    least_new_tokens: int = 1,
    **logit_fields: Unpack[LogitFields],
) -> SamplingParams:
    """Return a client's sampling parameters, within the bounds of a batch row. Some numbers beyond
    the bounds of model/ops/sampling/params.py become equivalent ones within them. Clients write
    2^31 - 1 for "every token" and tiny temperatures for "greedy". SamplingParams rejects the
    others. least_new_tokens: fewest tokens of the answer; 0 if it may be empty. Raises ValueError;
    its text begins with the field's name."""
    if max_new_tokens < least_new_tokens:
        raise ValueError(
            f"max_new_tokens must be at least {least_new_tokens}, not {max_new_tokens}"
        )
    asked = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=0.0 if 0 < temperature < MIN_TEMPERATURE else temperature,
        top_k=0 if top_k >= vocab_size else top_k,
        top_p=MIN_TOP_P if 0 < top_p < MIN_TOP_P else top_p,
        seed=seed,
        stop_token_ids=stop_token_ids,
        ignore_eos=ignore_eos,
        top_logprobs=top_logprobs,
        **logit_fields,
    )
    for field, tokens in asked.named_tokens.items():
        outside = [token for token in tokens if token >= vocab_size]
        if outside:
            raise ValueError(
                f"{field} must hold token ids of the vocabulary, in [0, {vocab_size}), not "
                f"{outside[0]}"
            )
    return asked
