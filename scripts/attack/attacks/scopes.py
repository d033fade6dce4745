"""Attacks with API keys outside their scope: forged keys anywhere, tenants' keys on the operator's
methods and routes."""

from functools import partial

import grpc

from scripts.attack.attack import Attempt
from scripts.attack.grpc_call import CALL_SECONDS, ENDS_A_NODE, ask, bearer, methods, service
from scripts.attack.http_call import HttpCall
from scripts.attack.http_call import ask as ask_http
from scripts.attack.world import ANN, BOB, KEYS, OWNER, STRANGERS
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tests.harness.daemons import random_prompt

_FORGED = (
    *("", "forged", "ann", ANN[:-1], f"{ANN}x", ANN.upper(), f"{ANN}\t{BOB}", "*"),
    *("Bearer", OWNER[::-1], "\x7f", "a" * 20_000),
)
_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_OPERATORS_PATHS = (
    *("/debug/overview", "/debug/requests", "/debug/sessions", "/debug/handovers"),
    *("/debug/evictions", "/debug/faults", "/debug/tree", "/debug/events"),
)
_LONG = 60
_SETTINGS = ({}, {"api_keys": "", "api_key": ""}, {"prefill": "127.0.0.1:9"}, {"tls_cert": ""})


def forged_keys(attempt: Attempt) -> None:
    """Send forged keys over HTTP and gRPC. Every call must be refused."""
    tally, world = attempt.tally, attempt.world

    def http(address: str, path: str, key: str) -> None:
        # A key impossible in a header is never sent.
        status = ask_http(address, HttpCall("GET", path, None, key), tally)
        if status is not None and status not in (400, 401, 431):
            tally.finding(f"{status} of {path} with the key {key[:40]!r}")

    with world.channel(world.decode) as channel:
        guarded = methods(pb)

        def grpc_call(key: str) -> None:
            method = attempt.rng.choice(guarded)
            code, _ = ask(channel, method, [method.request()], key, tally)
            if code is grpc.StatusCode.OK:
                tally.finding(f"{method.path} is open to the key {key[:40]!r}")

        for _ in attempt.rounds():
            calls = [
                partial(http, node.http_address, path, key)
                for key in _FORGED
                for path in ("/v1/models", "/metrics", "/debug/overview")
                for node in world.nodes
            ]
            calls += [partial(grpc_call, key) for key in _FORGED if key.isprintable()]
            attempt.at_once(4, calls)


def scope_walk(attempt: Attempt) -> None:
    """Call the operator's methods and routes with every other key. Each call must be refused and
    change nothing."""
    tally, world = attempt.tally, attempt.world
    admin = service(pb, "CacheAdmin").values()
    for _ in attempt.rounds():
        for node in world.nodes:
            with world.channel(node) as channel:
                for key in STRANGERS:
                    for method in admin:
                        request = method.request()
                        if method.name == "ChangeRole":
                            request.role = attempt.rng.choice((1, 2))
                            request.settings.update(attempt.rng.choice(_SETTINGS))
                        code, _ = ask(channel, method, [request], key, tally, 20.0)
                        # A caller with any rights may ask for the fate of its own requests.
                        own = method.name == "Explain" and code is grpc.StatusCode.NOT_FOUND
                        if code not in _DENIED and not own:
                            tally.finding(f"{code.name} of {method.name} with the key {key!r}")
                            if method.name in ENDS_A_NODE:
                                # The call may have succeeded: nothing can be learnt after it.
                                return
                    for path in _OPERATORS_PATHS:
                        status = ask_http(
                            node.http_address, HttpCall("GET", path, None, key), tally
                        )
                        if status not in (401, 403):
                            tally.finding(f"{status} of {path} with the key {key!r}")
        metrics = HttpCall("GET", "/metrics", None, KEYS["counter"][0])
        if ask_http(world.decode.http_address, metrics, tally) != 200:
            tally.finding("/metrics is shut to the key that it is for")


def foreign_requests(attempt: Attempt) -> None:
    """Name one tenant's request and session in calls with another tenant's key. The calls must not
    affect them."""
    tally, world = attempt.tally, attempt.world
    abort, sessions = service(pb, "Inference")["Abort"], service(pb, "Session")
    turn = 0
    with world.channel(world.decode) as channel:
        for _ in attempt.rounds():
            turn += 1
            victim = pb.GenerateRequest(
                request_id=f"victim-{turn}",
                token_ids=pb.TokenIds(ids=random_prompt(40, turn)),
                sampling=pb.Sampling(max_new_tokens=_LONG, ignore_eos=True),
            )
            answer = pb_grpc.InferenceStub(channel).Generate(
                victim, timeout=CALL_SECONDS, metadata=bearer(ANN)
            )
            tokens = len(next(answer).chunk.token_ids)
            ask(channel, abort, [abort.request(request_id=victim.request_id)], BOB, tally)
            try:
                tokens += sum(len(message.chunk.token_ids) for message in answer)
            except grpc.RpcError as error:
                tally.finding(f"a stranger's abort ended a request: {error.code().name}")
            else:
                if tokens != _LONG:
                    tally.finding(f"a stranger's abort ended a request after {tokens} tokens")
            opened = sessions["Open"]
            code, answers = ask(channel, opened, [opened.request()], ANN, tally)
            if code is not grpc.StatusCode.OK:
                tally.finding(f"{code.name} of an honest Open")
                continue
            name = answers[0].session_id
            for verb in ("Append", "Generate", "Fork", "Close"):
                method = sessions[verb]
                code, _ = ask(channel, method, [method.request(session_id=name)], BOB, tally)
                if code is grpc.StatusCode.OK:
                    tally.finding(f"a stranger's {verb} of a session was answered")
            close = sessions["Close"]
            ask(channel, close, [close.request(session_id=name)], ANN, tally)
