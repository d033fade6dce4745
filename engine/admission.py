"""How a waiting request gets what it needs, by the engine's role. A refusal changes nothing."""

from tasuki.engine.handover.base import Handover
from tasuki.pycache._cpp_cache import ImpossibleRequest
from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .request import Request


class Admission:
    """A refusal is remembered: a blocked request costs a step nothing until something happened that
    might change the answer."""

    def __init__(self, cache: HybridPrefixCache, handover: Handover) -> None:
        self._cache = cache
        self._handover = handover

    def admit(self, request: Request) -> bool:
        """Whether the request no longer waits for an allocation here or a prefill node. One that
        can never be served is rejected."""
        answer_depends_on = (self._cache.room_version, self._handover.prefill_available)
        if request.refused_at == answer_depends_on:
            return False
        try:
            admitted = self._handover.admit(request)
        except ImpossibleRequest as error:
            self._handover.reject(request, m.RequestError(m.ErrorKind.TOO_LONG, str(error)))
            return False
        request.refused_at = None if admitted else answer_depends_on
        return admitted
