"""One answer on the caller's side: pieces as they come, then the whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc

from ..engine.messages import FinishReason, HitBreakdown, TransferReport, Usage
from ..proto import inference_pb2 as pb
from .errors import client_error

_REASON = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_ABORT: FinishReason.ABORT,
}


@dataclass(frozen=True)
class Piece:
    """text holds whole characters only, so it may lag behind token_ids."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Answer:
    """token_ids, logprobs and margins run in parallel; usage is what the server counted."""

    token_ids: tuple[int, ...]
    text: str
    reason: FinishReason
    usage: Usage
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]


class AnswerStream:
    """Iterate it for pieces, or call `result` for the whole. `cancel` aborts the request.

    Owned by one thread, but cancel may come from any. Raises ClientError.
    """

    def __init__(self, start: Callable[[], "grpc.CallIterator[pb.GenerateResponse]"]) -> None:
        self._call = start()
        self._chunks: list[pb.TokenChunk] = []
        self._finished: pb.Finished | None = None

    def __iter__(self) -> Iterator[Piece]:
        try:
            for response in self._call:
                if response.WhichOneof("event") == "finished":
                    self._finished = response.finished
                    continue
                self._chunks.append(response.chunk)
                yield Piece(tuple(response.chunk.token_ids), response.chunk.text)
        except grpc.RpcError as error:
            raise client_error(error) from error

    def result(self) -> Answer:
        """Reads what has not been read and returns the whole answer."""
        for _ in self:
            pass
        if self._finished is None:
            raise ConnectionError("the server ended the stream without Finished: ask again")
        return Answer(
            token_ids=tuple(token for chunk in self._chunks for token in chunk.token_ids),
            text="".join(chunk.text for chunk in self._chunks),
            reason=_REASON[self._finished.reason],
            usage=read_usage(self._finished.usage),
            logprobs=tuple(value for chunk in self._chunks for value in chunk.logprobs),
            margins=tuple(value for chunk in self._chunks for value in chunk.margins),
        )

    def cancel(self) -> None:
        self._call.cancel()  # type: ignore[no-untyped-call]


def read_usage(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        hit=_read_hit(usage.hit) if usage.HasField("hit") else None,
        transfer=_read_transfer(usage.transfer) if usage.HasField("transfer") else None,
        prefilled_on=usage.prefilled_on,
        local_fallback=usage.local_fallback,
        time_to_first_token=usage.time_to_first_token_seconds,
        seconds=usage.seconds,
    )


def _read_hit(hit: pb.HitBreakdown) -> HitBreakdown:
    source = hit.checkpoint_source if hit.HasField("checkpoint_source") else None
    return HitBreakdown(
        hit.prompt_tokens, hit.kv_tokens, hit.usable_tokens, dict(hit.causes), source
    )


def _read_transfer(report: pb.TransferReport) -> TransferReport:
    return TransferReport(
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
    )
