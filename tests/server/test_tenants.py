"""Tests of sharing the cache among prompts: the salt of each call, on every surface, and permission
to name a tenant."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine import messages as m
from tasuki.engine.messages import EvictedCheckpoint, Eviction, LifeMark, RequestPhase
from tasuki.proto import inference_pb2 as pb
from tasuki.server.auth.callers import ANYBODY, OWNER, ApiKeys, Caller, Scope
from tasuki.server.auth.tenants import (
    MAX_SALT,
    TENANT_KEY,
    RequestContext,
    WatchScope,
    salt_of,
    tenant_of,
    visible_end,
    visible_evictions,
    visible_usage,
    watch_scope,
)
from tasuki.server.config import ServerConfig
from tasuki.server.errors import CallContext, InvalidField, PermissionDenied
from tasuki.server.grpc.interceptors import grpc_request_context, grpc_watch_scope, named_tenant
from tests.harness.api_keys import headers, keys_file
from tests.harness.grpc_calls import ids
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.refusals import refusal

NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}\Z")
# Salts of clients. A salt that begins as a tenant's does is refused, see below.
SALTS = st.binary(max_size=MAX_SALT).filter(lambda salt: not salt.startswith(b"\0tasuki"))
KEYS = "ann ann-key\nben ben-key\ngate gate-key gateway,caller\nops ops-key operator,caller\n"


# --- Salts


@given(st.none() | NAMES, SALTS, st.none() | NAMES, SALTS)
def test_no_two_pairs_of_tenant_and_salt_are_one_namespace(
    one: str | None, first: bytes, other: str | None, second: bytes
) -> None:
    same = (one, first) == (other, second)
    assert (salt_of(one, first) == salt_of(other, second)) == same


@given(NAMES, SALTS, st.none() | NAMES, st.integers(0, MAX_SALT))
def test_no_client_s_salt_reaches_a_tenant_by_what_it_spells(
    name: str, salt: bytes, other: str | None, cut: int
) -> None:
    """Try every guess open to a client: the salt itself, parts of it, and its components."""
    wanted = salt_of(name, salt)
    assert len(wanted) <= MAX_SALT
    for guess in (wanted, wanted[:cut], wanted[cut:], name.encode() + salt, salt + name.encode()):
        if other == name and guess == salt:
            continue
        try:
            got = salt_of(other, guess[:MAX_SALT])
        except InvalidField:
            continue
        assert got != wanted


def test_a_name_that_ends_where_a_salt_begins_is_another_tenant() -> None:
    assert salt_of("ann", b"bob") != salt_of("annb", b"ob") != salt_of("annbob", b"")


def test_who_has_no_tenant_keeps_the_salts_of_before() -> None:
    """Keep the earlier salts, so names of prefixes and watchers' knowledge of them stay valid."""
    for caller in (OWNER, ANYBODY):
        assert tenant_of(caller, []) is None
    assert salt_of(None, b"") == b"" and salt_of(None, b"team") == b"team"
    with pytest.raises(InvalidField, match="cache_salt has 257 bytes"):
        salt_of(None, b"x" * 257)


# --- Permission to name a tenant


@pytest.mark.parametrize("scopes", [frozenset({Scope.CALLER}), frozenset({Scope.METRICS})])
def test_only_gateways_and_operators_name_tenants(scopes: frozenset[Scope]) -> None:
    caller = Caller("eve", scopes, "eve")
    for named in (["ann"], ["eve"], [""], ["*"]):
        with pytest.raises(PermissionDenied, match="eve's has neither"):
            tenant_of(caller, named)
        with pytest.raises(PermissionDenied, match="eve's has neither"):
            watch_scope(caller, named)
    assert tenant_of(caller, []) == "eve"


@pytest.mark.parametrize("scope", [Scope.GATEWAY, Scope.OPERATOR])
def test_a_named_tenant_is_the_one_whose_key_has_that_name(scope: Scope) -> None:
    gate = Caller("gate", frozenset({scope}), "gate")
    assert salt_of(tenant_of(gate, ["ann"]), b"s") == salt_of("ann", b"s")
    assert tenant_of(gate, []) == "gate"
    assert watch_scope(gate, []) == WatchScope(gate, "gate", others=False)
    assert watch_scope(gate, ["ann"]) == WatchScope(gate, "ann", others=False)
    assert watch_scope(gate, ["*"]) == WatchScope(gate, "gate", others=True)


@pytest.mark.parametrize(
    "named",
    [[""], ["a" * 65], ["-a"], [".."], ["a b"], ["a\n"], ["é"], ["*"], ["a/b"], ["ann", "ben"]],
)
def test_a_name_out_of_shape_is_refused_by_field(named: list[str]) -> None:
    with pytest.raises(InvalidField) as refused:
        tenant_of(OWNER, named)
    assert refused.value.field == TENANT_KEY


# --- Every surface


@contextmanager
def front_of(tmp_path: Path, **changes: object) -> Iterator[HttpFront]:
    config = ServerConfig(api_keys=keys_file(tmp_path, KEYS), **changes)  # type: ignore[arg-type]
    with running_http(config=config) as http:
        yield http


def named(tenant: str | None) -> tuple[tuple[str, str], ...]:
    return () if tenant is None else ((TENANT_KEY, tenant),)


def over_http(http: HttpFront, key: str, tenant: str | None, salt: str) -> None:
    reply = http.complete(headers(key) | dict(named(tenant)), cache_salt=salt)
    if reply.status != 200:
        raise LookupError(*reply.refusal)


def over_grpc(http: HttpFront, key: str, tenant: str | None, salt: str) -> None:
    calls = http.front.bearing(key, *named(tenant))
    list(calls.generate(5, 6, cache_salt=salt.encode()))


def in_a_session(http: HttpFront, key: str, tenant: str | None, salt: str) -> None:
    plain, calls = http.front.bearing(key), http.front.bearing(key, *named(tenant))
    session = calls.open(salt.encode())
    plain.append(session, 5, 6)
    for each in (session, plain.fork(session)):
        list(calls.turn(each))


Ask = Callable[[HttpFront, str, str | None, str], None]
SURFACES = pytest.mark.parametrize("ask", [over_http, over_grpc, in_a_session])


@SURFACES
def test_a_key_s_prompts_are_its_tenant_s_and_so_are_those_of_who_names_it(
    tmp_path: Path, ask: Ask
) -> None:
    with front_of(tmp_path) as http:
        for key, tenant, salt, whose in (
            ("ann-key", None, "", "ann"),
            ("ben-key", None, "", "ben"),
            ("ann-key", None, "team", "ann"),
            ("gate-key", None, "", "gate"),
            ("gate-key", "ann", "team", "ann"),
            ("ops-key", "ben", "", "ben"),
        ):
            http.engine.received.clear()
            ask(http, key, tenant, salt)
            wanted = salt_of(whose, salt.encode())
            submits, cursors = http.engine.of(m.Submit), http.engine.of(m.OpenCursor)
            assert submits and {each.salt for each in submits} == {wanted}
            assert {each.salt for each in cursors} <= {wanted}


@SURFACES
def test_with_a_shared_cache_keys_are_told_apart_by_their_own_salts_alone(
    tmp_path: Path, ask: Ask
) -> None:
    with front_of(tmp_path, share_cache=True) as http:
        ask(http, "ann-key", None, "")
        ask(http, "ben-key", None, "")
        ask(http, "ben-key", None, "team")
        # A caller that names a tenant asks for a separate cache.
        ask(http, "gate-key", "ann", "")
        salts = dict.fromkeys(each.salt for each in http.engine.of(m.Submit))
        assert list(salts) == [b"", b"team", salt_of("ann", b"")]


@SURFACES
def test_a_tenant_named_by_who_may_not_is_refused_and_never_ignored(
    tmp_path: Path, ask: Ask
) -> None:
    with front_of(tmp_path) as http:
        if ask is over_http:
            with pytest.raises(LookupError) as refused:
                ask(http, "ann-key", "ben", "")
            assert refused.value.args == (403, "permission_denied")
        else:
            told = refusal(ask, http, "ann-key", "ben", "")
            assert told.typed == (grpc.StatusCode.PERMISSION_DENIED, "permission_denied")
        assert not http.engine.of(m.Submit) and not http.engine.of(m.OpenCursor)


def test_a_session_is_answered_for_the_tenant_that_it_was_opened_for(tmp_path: Path) -> None:
    with front_of(tmp_path) as http:
        session = http.front.bearing("gate-key", *named("ann")).open()
        http.front.bearing("gate-key").append(session, 5)
        for other in (None, "ben"):
            refused = refusal(http.front.bearing("gate-key", *named(other)).turn, session)
            assert "tenant that the session was opened for" in refused.message
        assert not http.engine.of(m.Submit)


def test_conversations_of_two_tenants_are_two_whatever_they_are_called(tmp_path: Path) -> None:
    with front_of(tmp_path) as http:
        for key in ("ann-key", "ben-key", "ann-key"):
            assert http.complete(headers(key), prompt_cache_key="mine").status == 200
        first, second, third = (each.session for each in http.engine.of(m.Submit))
        assert first == third != second


def test_an_operator_looks_below_a_prefix_of_the_tenant_that_it_names(tmp_path: Path) -> None:
    request = pb.TreeRequest(prefix=ids(5, 6), cache_salt=b"s")
    with front_of(tmp_path) as http:
        for tenant in (None, "ann"):
            calls = http.front.bearing("ops-key", *named(tenant))
            refused = refusal(calls.admin.Tree, request, **calls.options)
            assert "holds nothing there" in refused.message
        asked = [query.salt for query in http.engine.of(m.TreeQuery)]
        assert asked == [b"s", salt_of("ann", b"s")]


# --- Reports to callers

CAUSES = (
    *("new", "not_pulled", "never_checkpointed", "checkpoint_evicted", "kv_evicted"),
    *("alignment", "in_flight"),
)
COUNTS = st.tuples(*[st.integers(0, 200)] * (len(CAUSES) + 1))


def hit_of(counts: tuple[int, ...], in_pages: m.HitBreakdown | None = None) -> m.HitBreakdown:
    usable, *causes = counts
    lost = EvictedCheckpoint(7, 1.0, None)
    prompt = usable + sum(causes)
    told = dict(zip(CAUSES, causes, strict=True))
    kv = min(prompt, usable + told["never_checkpointed"] + told["alignment"])
    return m.HitBreakdown(prompt, kv, usable, told, "turn_end", lost, in_pages)


def usage_of(hit: m.HitBreakdown) -> m.Usage:
    transfer = m.TransferReport(4096, 4, 2, 0.03, 0.01)
    route = m.RouteReport("here", {"here": 0.5})
    pulled = m.PullReport(64, 4096, 0.1)
    bid = m.PrefillBid("p0", "a:1", hit.usable_tokens, 0.5, 0.25, 0.0, 9.0, True)
    return m.Usage(
        hit.prompt_tokens,
        1,
        hit,
        transfer,
        "p0",
        True,
        0.25,
        1.25,
        pulled=pulled,
        route=route,
        prefill_choice=m.PrefillChoice("cost", (bid,), 1, hit.usable_tokens, 0.0),
    )


TENANT = RequestContext(Caller("ann", tenant="ann"), tenant="ann")
SHARING = RequestContext(Caller("ann"))
OPERATOR = RequestContext(Caller("ops", frozenset({Scope.OPERATOR})))


def test_only_operators_see_what_other_nodes_had_to_do() -> None:
    usage = usage_of(hit_of((128, *(0 for _ in CAUSES))))
    assert visible_usage(usage, OPERATOR).prefill_choice is not None
    assert visible_usage(usage, TENANT).prefill_choice is None
    assert visible_usage(usage, SHARING).prefill_choice is None


@given(COUNTS)
def test_a_tenant_s_caller_is_told_of_lost_tokens_by_whole_pages(counts: tuple[int, ...]) -> None:
    exact = hit_of(counts)
    told = visible_usage(usage_of(exact), TENANT).hit
    assert told is not None and told.usable_tokens == exact.usable_tokens
    assert told.usable_tokens + sum(told.causes.values()) == exact.prompt_tokens
    assert all(count >= 0 for count in told.causes.values()) and set(told.causes) == set(CAUSES)
    known = exact.prompt_tokens - told.causes["new"]
    assert known == told.usable_tokens or known % 64 == 0
    assert known <= exact.prompt_tokens - exact.causes["new"]
    assert told.kv_tokens % 64 == 0 or told.kv_tokens == told.usable_tokens
    assert told.lost is None, "what was evicted names others' requests"


@given(COUNTS, COUNTS, COUNTS)
def test_callers_that_share_are_told_nothing_that_exact_counts_decide(
    one: tuple[int, ...], other: tuple[int, ...], pages: tuple[int, ...]
) -> None:
    in_pages = hit_of(pages)
    told = [
        visible_usage(usage_of(hit_of(exact, in_pages)), SHARING).__dict__
        | {"prompt_tokens": in_pages.prompt_tokens}
        for exact in (one, other)
    ]
    assert told[0] == told[1] and told[0]["hit"] == in_pages


def test_operators_are_told_everything() -> None:
    usage = usage_of(hit_of((3, 1, 7, 2, 3, 4, 5, 6)))
    assert visible_usage(usage, OPERATOR) is usage
    for caller in (OWNER, ANYBODY):
        assert visible_usage(usage, RequestContext(caller)) is usage


def test_an_explanation_tells_a_caller_no_more_than_the_answer_did(tmp_path: Path) -> None:
    with front_of(tmp_path) as http:
        *_, last = http.front.bearing("ann-key").generate(5, 6, 7, request_id="mine")
        told = {
            key: http.front.bearing(key).explain("mine").finished for key in ("ann-key", "ops-key")
        }
    assert told["ann-key"] == last.finished != told["ops-key"]
    assert told["ops-key"].usage.hit.kv_tokens == 3


def test_who_shares_is_told_neither_states_nor_evictions() -> None:
    usage = usage_of(hit_of((3, 1, 7, 2, 3, 4, 5, 6)))
    life = (LifeMark(RequestPhase.AWAITING_PREFILL, 0.1),)
    end = m.Finished(m.RequestId("r"), m.FinishReason.STOP, usage, life)
    eviction = Eviction(1, "tail", None, 70, 0.5, None, "another's request")
    assert visible_end(end, OPERATOR) == end and visible_evictions((eviction,), OPERATOR)
    assert visible_end(end, TENANT).life == life and not visible_end(end, SHARING).life
    for origin in (TENANT, SHARING):
        assert visible_evictions((eviction,), origin) == ()


def test_an_old_peer_that_does_not_tell_pages_tells_sharing_callers_nothing() -> None:
    usage = usage_of(hit_of((3, 1, 7, 2, 3, 4, 5, 6)))
    assert visible_usage(usage, SHARING).hit is None


def test_keys_of_a_file_are_tenants_unless_they_share(tmp_path: Path) -> None:
    keys = ApiKeys.load(Path(keys_file(tmp_path, KEYS)))
    ann, shared = keys.caller(["Bearer ann-key"]), keys.sharing().caller(["Bearer ann-key"])
    assert ann is not None and ann.tenant == "ann"
    assert shared is not None and (shared.name, shared.tenant) == ("ann", None)


def test_a_call_s_metadata_say_whose_it_is() -> None:
    gate = Caller("gate", frozenset({Scope.GATEWAY}), "gate")
    keys = ApiKeys({gate: "gate-key"})
    bearer = ("authorization", "Bearer gate-key")

    class Called:
        def __init__(self, *metadata: tuple[str, str]) -> None:
            self._metadata = metadata

        def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
            return self._metadata

    def call(*metadata: tuple[str, str]) -> CallContext:
        return cast(CallContext, Called(*metadata))

    plain, named = call(bearer), call(bearer, (TENANT_KEY, "ann"), ("traceparent", "a-span"))
    assert grpc_request_context(keys, plain) == RequestContext(gate, "", "gate")
    assert grpc_request_context(keys, named) == RequestContext(gate, "a-span", "ann")
    assert grpc_watch_scope(keys, plain) == WatchScope(gate, "gate", others=False)
    assert grpc_watch_scope(keys, named) == WatchScope(gate, "ann", others=False)
    everything = call(bearer, (TENANT_KEY, "*"))
    assert grpc_watch_scope(keys, everything) == WatchScope(gate, "gate", others=True)
    assert named_tenant(named) == "ann" and named_tenant(plain) is None
