"""Tokens that were drawn from logits that are no numbers."""

import logging
import math
from collections.abc import Sequence

from tasuki.engine.messages import ErrorKind, RequestError
from tasuki.engine.request import Request
from tasuki.model.ops.sampling.reference import Sampled

log = logging.getLogger(__name__)


def all_sound(tokens: Sequence[Sampled]) -> bool:
    """Whether all were drawn from numbers."""
    return all(math.isfinite(token.logprob) for token in tokens)


def unsound(request: Request) -> RequestError:
    """Why the request must end without tokens that are not sound. Nothing of it may be kept: its
    state and KV are no numbers either."""
    log.error("request %s ends: its logits were NaN or infinite", request.id)
    return RequestError(
        ErrorKind.INTERNAL,
        f"the model's logits were NaN or infinite after {request.length} tokens: check the "
        "checkpoint and its dtype, or flush the cache if only this prompt does it",
    )
