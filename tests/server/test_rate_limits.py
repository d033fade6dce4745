"""Tests of a caller's limits per minute: the allowance, the refusal, and the caller's identity."""

import time
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.server.auth.callers import ANYBODY, CERTIFIED, ApiKeyError, ApiKeys, Caller, Scope
from tasuki.server.auth.limits import CallerLimits, RateLimits
from tasuki.server.config import ServerConfig
from tasuki.server.errors import RETRY_AFTER_KEY, PromptTooLong, RateLimited
from tasuki.server.text.text_codec import TextCodec
from tests.harness.api_keys import headers, keys_file
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_fixtures import running_http
from tests.harness.refusals import refusal
from tests.harness.running_nodes import HTTP, fused_node

ANN, BEN = Caller("ann"), Caller("ben")
SECRETS = ("ann-has-this-key", "ben-has-that-key")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_limits_nothing_is_too_much() -> None:
    limits = CallerLimits.none().rates
    for _ in range(100):
        limits.admit_request(ANN)
    limits.admit_prompt(ANN, 2**40)


def test_requests_refill_evenly_and_each_caller_has_its_own() -> None:
    clock = Clock()
    limits = RateLimits(2, 0, clock)
    limits.admit_request(ANN)
    limits.admit_request(ANN)
    with pytest.raises(RateLimited, match="ann has used its 2 requests a minute") as caught:
        limits.admit_request(ANN)
    assert caught.value.retry_after == pytest.approx(30.0)
    limits.admit_request(BEN)
    clock.now += 29.9
    with pytest.raises(RateLimited):
        limits.admit_request(ANN)
    clock.now += 0.2
    limits.admit_request(ANN)


def test_an_answer_is_paid_for_too_and_leaves_a_debt() -> None:
    clock = Clock()
    limits = RateLimits(0, 600, clock)
    limits.admit_prompt(ANN, 500)
    for _ in range(200):
        limits.answered(ANN, 1)
    with pytest.raises(RateLimited) as caught:
        limits.admit_prompt(ANN, 100)
    assert caught.value.retry_after == pytest.approx(20.0)
    clock.now += caught.value.retry_after
    limits.admit_prompt(ANN, 100)


def test_what_no_minute_can_hold_is_not_worth_a_retry() -> None:
    with pytest.raises(PromptTooLong, match="601 tokens, and 600 are allowed a minute"):
        RateLimits(0, 600, Clock()).admit_prompt(ANN, 601)
    limits = RateLimits(2, 0, Clock())
    with pytest.raises(PromptTooLong, match="2 requests are allowed a minute"):
        limits.admit_request(ANN, 3)
    limits.admit_request(ANN, 2)
    RateLimits(0, 0, Clock()).admit_request(ANN, 3)


@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.integers(1, 100)), max_size=60))
def test_no_minute_ever_admits_more_than_two_allowances(asked: list[tuple[float, int]]) -> None:
    """Allow one full allowance and one refilled within the minute. The reported waiting time must
    suffice."""
    clock, limit = Clock(), 100
    limits = RateLimits(0, limit, clock)
    admitted: list[tuple[float, int]] = []
    for pause, tokens in asked:
        clock.now += pause
        try:
            limits.admit_prompt(ANN, tokens)
        except RateLimited as error:
            clock.now += error.retry_after + 1e-6
            limits.admit_prompt(ANN, tokens)
        admitted.append((clock.now, tokens))
    for at, _ in admitted:
        within = sum(tokens for when, tokens in admitted if at <= when < at + 60.0)
        assert within <= 2 * limit


@pytest.mark.usefixtures("each_front")
def test_a_call_over_the_limit_is_told_when_to_come_back() -> None:
    with running_front(config=ServerConfig(requests_per_minute=1)) as front:
        begun = time.monotonic()
        assert len(list(front.calls.generate(1, 2))) > 1
        refused = refusal(front.calls.generate, 1, 2)
        least = 60_000 - 1e3 * (time.monotonic() - begun)
        assert refused.typed == (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate_limited")
        assert least - 1 <= int(refused.trailing[RETRY_AFTER_KEY]) <= 60_000
        assert len(front.engine.of(m.Submit)) == 1, "what is refused reaches no engine"


@pytest.mark.usefixtures("each_front")
def test_a_session_pays_as_well() -> None:
    with (
        running_front(config=ServerConfig(tokens_per_minute=60)) as front,
        Client(front.address) as client,
        client.open_session() as session,
    ):
        session.append(Prompt(token_ids=range(50)))
        session.generate().result()
        with pytest.raises(ClientError) as caught:
            session.generate().result()
        assert caught.value.kind == "rate_limited"
        assert caught.value.retry_after is not None and 0 < caught.value.retry_after <= 60


@pytest.mark.usefixtures("each_front")
def test_http_says_429_with_retry_after(codec: TextCodec) -> None:
    with running_http(codec, ServerConfig(requests_per_minute=2)) as http:
        begun = time.monotonic()
        assert [http.complete().status, http.chat().status] == [200, 200]
        for stream in (False, True):
            refused = http.complete(stream=stream)
            least = 30 - (time.monotonic() - begun)
            assert refused.refusal == (429, "rate_limited")
            assert refused.error["type"] == "rate_limit_error"
            assert least - 1 <= int(refused.headers["Retry-After"]) <= 30
        assert http.ask("GET", "/health").status == 200


@pytest.mark.usefixtures("each_front")
def test_each_key_of_a_file_has_a_minute_of_its_own(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, f"ann {SECRETS[0]}\n\nben {SECRETS[1]}  # a comment\n")
    config = ServerConfig(requests_per_minute=1, api_keys=keys, api_key="a-third")
    assert not any(secret in repr((config, config.access)) for secret in (*SECRETS, "a-third"))
    with running_http(config=config) as http:
        borne = (SECRETS[0], SECRETS[0], SECRETS[1], "a-third", "nobody's")
        assert [http.complete(headers(key)).status for key in borne] == [200, 429, 200, 200, 401]
        assert http.complete().status == 401


def test_a_message_over_the_size_is_refused() -> None:
    with running_front(config=ServerConfig(max_message_mib=1)) as front:
        refused = refusal(front.calls.generate, text="a" * 2**20)
        assert refused.status is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "has none"),
        ("ann", ":1: write a name and a key"),
        ("ann k-1 caller two", ":1: write a name and a key"),
        ("ann k-1 root", ":1: ann's scopes must be some of caller,metrics,gateway,weights,"),
        ("default k-1", ":1: the name default is taken"),
        ("anybody k-1", ":1: the name anybody is taken"),
        ("nobody k-1", ":1: the name nobody is taken"),
        ("certified k-1", ":1: the name certified is taken"),
        ("ann k-1\nann two", ":2: ann has a key already"),
        ("ann k-1\nben k-1", ":2: ben's key is another's too"),
    ],
)
def test_a_bad_file_of_keys_is_named_without_its_keys(tmp_path: Path, text: str, part: str) -> None:
    keys = keys_file(tmp_path, text)
    with pytest.raises(ApiKeyError) as caught:
        ServerConfig(api_keys=keys).access  # noqa: B018
    assert part in str(caught.value) and "k-1" not in str(caught.value)


def test_no_keys_let_everybody_in_and_some_keys_nobody_without() -> None:
    assert ApiKeys({}).caller([]) == ANYBODY
    assert ApiKeys({}, keyless=CERTIFIED).caller([]) == CERTIFIED
    keys = ApiKeys({ANN: SECRETS[0]}, keyless=ANYBODY)
    right = f"Bearer {SECRETS[0]}"
    assert keys.caller([right]) == keys.caller([right.encode()]) == ANN
    wrong = (f"bearer {SECRETS[0]}", f"{right} ", f" {right}", f"Bearer  {SECRETS[0]}", SECRETS[0])
    for borne in ([], [""], [right, right], [right, "Bearer a-guess"], *([word] for word in wrong)):
        assert keys.caller(borne) is None, borne
    assert SECRETS[0] not in repr(keys) + str(keys)


def test_a_daemon_never_logs_its_secrets(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, f"ann {SECRETS[0]}\n")
    salt = b"a-salt-that-is-nobody-elses"
    with fused_node(
        *("--api-key", SECRETS[1], "--api-keys", keys, *HTTP, "--requests-per-minute", "1")
    ) as node:
        for key in (*SECRETS, *SECRETS, "a-guess"):
            with Client(node.address, api_key=key) as client:
                try:
                    client.generate(
                        Prompt(token_ids=[1, 2, 3]), cache_salt=salt, max_new_tokens=2
                    ).result()
                except ClientError as error:
                    assert error.kind in ("rate_limited", "invalid_api_key")
                    assert not any(secret in str(error) for secret in SECRETS)
    told = "\n".join(node.last_words)
    for secret in (*SECRETS, salt.decode(), "a-guess"):
        assert secret not in told, told


def test_a_line_of_keys_may_list_scopes(tmp_path: Path) -> None:
    text = "ann k-1\nprom k-2 metrics\nroot k-3 caller,operator\n"
    keys = ServerConfig(api_keys=keys_file(tmp_path, text)).access.keys
    scopes = {}
    for key in ("k-1", "k-2", "k-3"):
        caller = keys.caller([f"Bearer {key}"])
        assert caller is not None
        scopes[caller.name] = caller.scopes
    assert scopes == {
        "ann": {Scope.CALLER},
        "prom": {Scope.METRICS},
        "root": {Scope.CALLER, Scope.OPERATOR},
    }


def test_a_prompt_may_take_a_whole_minute_and_what_is_refused_takes_nothing() -> None:
    clock = Clock()
    limits = RateLimits(0, 600, clock)
    limits.admit_prompt(ANN, 600)
    for _ in range(3):
        with pytest.raises(RateLimited) as caught:
            limits.admit_prompt(ANN, 60)
        assert caught.value.retry_after == pytest.approx(6.0)
    limits.answered(ANN, 1)
    with pytest.raises(RateLimited) as caught:
        limits.admit_prompt(ANN, 60)
    assert caught.value.retry_after == pytest.approx(6.1)
    # An hour later, the allowance is still one minute's.
    clock.now += 3600.0
    limits.admit_prompt(ANN, 600)
    with pytest.raises(RateLimited):
        limits.admit_prompt(ANN, 1)


def test_tokens_are_counted_where_they_are_limited() -> None:
    assert not RateLimits(5, 0, Clock()).count_tokens
    assert RateLimits(0, 1, Clock()).count_tokens
