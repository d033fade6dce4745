"""Requests and sessions sent to an API server by one gRPC client."""

from typing import Any

import grpc

from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tests.harness.waiting import HANG_SECONDS

Metadata = tuple[tuple[str, str], ...]


def ids(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


class GrpcCalls:
    """Calls of one client with the same metadata. A prompt is `tokens`, or is given by the
    message's `fields`. A rejected call raises grpc.RpcError; a rejected answer raises it when it is
    read."""

    def __init__(self, channel: grpc.Channel, metadata: Metadata = ()) -> None:
        self.inference = pb_grpc.InferenceStub(channel)
        self.sessions = pb_grpc.SessionStub(channel)
        self.admin = pb_grpc.CacheAdminStub(channel)
        self.options: dict[str, Any] = {"metadata": metadata, "timeout": HANG_SECONDS}

    def generate(self, *tokens: int, **fields: Any) -> Any:
        """Start a Generate request. Returns the gRPC call; iterating over it gives the answer's
        messages."""
        request = pb.GenerateRequest(**_prompt(tokens), **fields)
        return self.inference.Generate(request, **self.options)

    def abort(self, request_id: str) -> pb.AbortResponse:
        return self.inference.Abort(pb.AbortRequest(request_id=request_id), **self.options)

    def open(self, cache_salt: bytes = b"") -> str:
        """Open a session and return its id."""
        request = pb.SessionOpenRequest(cache_salt=cache_salt)
        return self.sessions.Open(request, **self.options).session_id

    def append(self, session: str, *tokens: int, **fields: Any) -> pb.SessionAppendResponse:
        request = pb.SessionAppendRequest(session_id=session, **_prompt(tokens), **fields)
        return self.sessions.Append(request, **self.options)

    def say(self, session: str, *messages: tuple[str, str]) -> pb.SessionAppendResponse:
        """Append messages to a session, each a role and a content."""
        items = [pb.Message(role=role, content=content) for role, content in messages]
        return self.append(session, messages=pb.Messages(items=items))

    def turn(self, session: str, **fields: Any) -> Any:
        """Start an answer in a session. Returns the gRPC call, also the stream of messages."""
        request = pb.SessionGenerateRequest(session_id=session, **fields)
        return self.sessions.Generate(request, **self.options)

    def fork(self, session: str) -> str:
        request = pb.SessionForkRequest(session_id=session)
        return self.sessions.Fork(request, **self.options).session_id

    def close(self, session: str) -> None:
        self.sessions.Close(pb.SessionCloseRequest(session_id=session), **self.options)

    def stats(self) -> pb.StatsResponse:
        return self.admin.Stats(pb.StatsRequest(), **self.options)

    def explain(self, request_id: str) -> pb.ExplainResponse:
        return self.admin.Explain(pb.ExplainRequest(request_id=request_id), **self.options)


def _prompt(tokens: tuple[int, ...]) -> dict[str, pb.TokenIds]:
    return {"token_ids": ids(*tokens)} if tokens else {}
