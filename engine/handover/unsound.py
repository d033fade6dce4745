"""Tokens that were drawn from logits that are no numbers."""

import logging
import math

from tasuki.engine.messages import ErrorKind, RequestError
from tasuki.engine.request import Request
from tasuki.model.ops.sampling.reference import Sampled

log = logging.getLogger(__name__)


def unsound(request: Request, sampled: Sampled) -> RequestError | None:
    """Why the request must end without this token; None where the token is sound. Nothing of such a
    request may be kept: its state and KV are no numbers either."""
    if math.isfinite(sampled.logprob):
        return None
    log.error("request %s ends: its logits were NaN or infinite", request.id)
    return RequestError(
        ErrorKind.INTERNAL,
        f"the model's logits were NaN or infinite after {request.length} tokens: check the "
        "checkpoint and its dtype, or flush the cache if only this prompt does it",
    )
