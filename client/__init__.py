"""The client library: sessions over gRPC. Import public names from this package, because its
modules may change."""

from .aio import AsyncClient, AsyncSession
from .answer import Answer, AnswerStream, AsyncAnswer, Piece
from .cache_events import CacheWatch, EventBatch, MissedEvents, PrefixIndex
from .errors import ClientError, RetryPolicy
from .fleet import AsyncFleet, Fleet
from .prompt import Prompt, SamplingOptions, Targets
from .session import Client, Session

__all__ = [
    "Answer",
    "AnswerStream",
    "AsyncAnswer",
    "AsyncClient",
    "AsyncFleet",
    "AsyncSession",
    "CacheWatch",
    "Client",
    "ClientError",
    "EventBatch",
    "Fleet",
    "MissedEvents",
    "Piece",
    "PrefixIndex",
    "Prompt",
    "RetryPolicy",
    "SamplingOptions",
    "Session",
    "Targets",
]
