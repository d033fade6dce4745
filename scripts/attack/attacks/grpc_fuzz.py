"""Attack on every method of every gRPC service, with every scope of key: valid messages, odd
values, broken bytes."""

from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from scripts.attack.attack import Attempt
from scripts.attack.drawing import examples, messages
from scripts.attack.grpc_call import ENDS_A_NODE, Method, ask, begin, judge, methods
from scripts.attack.world import KEYS, OWNER
from tasuki.proto import handover_pb2, inference_pb2

_LENGTH = 4


def grpc_fuzz(attempt: Attempt) -> None:
    rng, world = attempt.rng, attempt.world
    front = [*methods(inference_pb2), *methods(health_pb2), *methods(reflection_pb2)]
    served = [(world.decode, method) for method in front]
    served += [(world.prefill, method) for method in (*front, *methods(handover_pb2))]
    keys = [OWNER, "", "forged", *(key for key, _ in KEYS.values())]
    with world.channel(world.decode) as decode, world.channel(world.prefill) as prefill:
        channels = {world.decode: decode, world.prefill: prefill}
        for _ in attempt.rounds():
            node, method = rng.choice(served)
            if method.name in ENDS_A_NODE:
                continue
            drawn = examples(messages(method.request.DESCRIPTOR), rng, 20)
            calls = []
            for message in drawn:
                sent = _mutated(attempt, method, message)
                key = rng.choice(keys)
                calls.append(partial(_ask, channels[node], method, sent, key, attempt))
            attempt.at_once(4, calls)


def _mutated(attempt: Attempt, method: Method, drawn: Any) -> list[Any]:
    """Return the messages to send to a method. For some methods they are a valid message with one
    part changed."""
    rng = attempt.rng
    message = drawn
    if method.name == "Generate":
        message = _answered(method)
        changed = rng.sample([field.name for field in method.request.DESCRIPTOR.fields], 2)
        for name, value in ((field.name, value) for field, value in drawn.ListFields()):
            if name in changed:
                message.MergeFrom(method.request(**{name: value}))
        message.sampling.max_new_tokens = _LENGTH
    if rng.random() < 0.1:
        whole = bytearray(message.SerializeToString() + b"\xff")
        whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        return [bytes(whole)]
    return [message] * rng.choice((1, 1, 2)) if method.arity.startswith("stream") else [message]


def _answered(method: Method) -> Any:
    if method.service == "tasuki.v1.Inference":
        return method.request(token_ids=inference_pb2.TokenIds(ids=[1, 2, 3]))
    return method.request(session_id="none")


def _ask(
    channel: grpc.Channel, method: Method, sent: list[Any], key: str, attempt: Attempt
) -> None:
    # Do not wait for calls ended only by a hang-up of ours.
    endless = method.name in ("Watch", "WatchEvents", "Heartbeat", "Transfer")
    if not endless:
        ask(channel, method, sent, key, attempt.tally)
        return
    try:
        for _ in begin(channel, method, sent, key, 0.5):
            pass
        attempt.tally.note("OK")
    except grpc.RpcError as error:
        code = error.code()
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            attempt.tally.note("hung up on")
        else:
            judge(code, error.details() or "", f"{method.path} {sent}"[:400], attempt.tally)
