"""One gRPC call of an attack. Its status shows a fault of the server.

Every call has a deadline. INTERNAL, UNKNOWN and a passed deadline are always findings.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from scripts.attack.tally import Tally

CALL_SECONDS = 60.0
ENDS_A_NODE = ("Drain", "ChangeRole")
"""Methods ending a node's service if they succeed."""
_HEARD = 200
"""Number of messages read from a stream before cancelling it."""


@dataclass(frozen=True)
class Method:
    """One gRPC method. path: /service/method. arity: name of the function of grpc.Channel for it,
    for example unary_unary."""

    path: str
    arity: str
    request: Any
    response: Any

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


def methods(module: ModuleType) -> list[Method]:
    """Return the methods of every service in the stubs of a .proto file. module: the stubs."""
    return [
        Method(
            f"/{service.full_name}/{method.name}",
            f"{'stream' if method.client_streaming else 'unary'}_"
            f"{'stream' if method.server_streaming else 'unary'}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


def service(module: ModuleType, name: str) -> dict[str, Method]:
    """Return one service's methods by name."""
    return {method.name: method for method in methods(module) if method.service.endswith(name)}


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),) if key else ()


def ask(
    channel: grpc.Channel,
    method: Method,
    requests: Iterable[Any],
    key: str,
    tally: Tally,
    seconds: float = CALL_SECONDS,
) -> tuple[grpc.StatusCode, list[Any]]:
    """Call the method, and record its status in the tally. key: API key. seconds: deadline. Returns
    the status and the answers. Endless streams are cut."""
    sent = list(requests)
    answers: list[Any] = []
    try:
        answer = begin(channel, method, sent, key, seconds)
        if method.arity.endswith("_unary"):
            answers.append(answer)
        else:
            answers += itertools.islice(answer, _HEARD)
            answer.cancel()
    except grpc.RpcError as error:
        judge(error.code(), error.details() or "", f"{method.path} {_short(sent)}", tally)
        return error.code(), answers
    tally.note(grpc.StatusCode.OK.name)
    return grpc.StatusCode.OK, answers


def begin(
    channel: grpc.Channel, method: Method, sent: Sequence[Any], key: str, seconds: float
) -> Any:
    """Start a call of the method. Returns its answer, or an iterator of its answers. sent:
    messages, or raw bytes."""
    call = getattr(channel, method.arity)(
        method.path,
        request_serializer=lambda message: (
            message if isinstance(message, bytes) else message.SerializeToString()
        ),
        response_deserializer=method.response.FromString,
    )
    asked: Any = iter(sent) if method.arity.startswith("stream") else sent[0]
    return call(asked, timeout=seconds, metadata=bearer(key))


def judge(code: grpc.StatusCode, details: str, call: str, tally: Tally) -> None:
    tally.note(code.name)
    if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN):
        tally.finding(f"{code.name} {details[:200]!r} of {call}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        tally.finding(f"no end in time: {call}")


def _short(sent: list[Any]) -> str:
    return " ".join(" ".join(str(message).split())[:300] for message in sent[:2])
