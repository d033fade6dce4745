"""One log line for each request that ends: who it was and what became of it, never what it said.

Pure but for logging.
"""

import logging

from ..dashboard.told import Told
from ..engine.messages import Finished, Rejected

log = logging.getLogger(__name__)


def log_ended(message: Told) -> None:
    match message:
        case Finished(request_id=request_id, reason=reason, usage=usage):
            cached = 0 if usage.hit is None else usage.hit.usable_tokens
            told = {
                "request_id": request_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": cached,
                "completion_tokens": usage.completion_tokens,
                "prefilled_on": usage.prefilled_on,
                "first_token_seconds": round(usage.time_to_first_token, 6),
                "seconds": round(usage.seconds, 6),
            }
            log.info("request ended: %s", reason.value, extra=told)
        case Rejected(request_id=request_id, error=error):
            log.warning("request refused: %s", error.message, extra={"request_id": request_id})
