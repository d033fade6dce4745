"""aiohttp's own log: a malformed request head is logged at debug level, without a traceback.

Anybody may send such a head, without a key; a traceback for each would let a stranger fill the log.
Thread rule: any thread.
"""

import logging
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError

log = logging.getLogger(__name__)


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """For aiohttp's server. Invariant: errors that no client caused keep level and traceback."""

    def __init__(self) -> None:
        super().__init__(log)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **more: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self.debug("a head that is no HTTP: %s", exc_info.message[:200])
        else:
            super().exception(msg, *args, exc_info=exc_info, **more)
