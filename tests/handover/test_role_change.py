"""Two nodes swap their roles under load, and no retryable request fails."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import grpc
import pytest

from tasuki.cli.role import change_role
from tasuki.cli.role import main as role_command
from tasuki.client.answer import Answer
from tasuki.client.channel import bearing, open_channel
from tasuki.client.errors import ClientError, RetryPolicy, is_transient
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.decode_node.config import DecodeConfig
from tasuki.engine.config import EngineConfig
from tasuki.prefill_node.config import PrefillConfig
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.config import ServerConfig
from tasuki.server.errors import InvalidRequest, RoleFixed
from tasuki.server.role_change import TUNING, RoleChange
from tasuki.utils.flags import read_configs
from tasuki.utils.options import ConfigFileError, flags_of
from tests.harness.daemons import NEW_TOKENS, Node, Question, asked, flags, fleet, meet, question_of
from tests.harness.etcd_process import running_etcd
from tests.harness.running_nodes import require_nixl
from tests.harness.waiting import HANG_SECONDS, until

FIXED = frozenset(
    {
        # Callers and their limits.
        *("api_key", "api_keys", "share_cache", "max_message_mib"),
        "picture_media_mib",
        *("requests_per_minute", "tokens_per_minute"),
        *("requests_per_key", "sessions_per_key", "watchers_per_key", "max_watchers"),
        *("max_connections", "allowed_hosts", "allowed_origins", "fetch_pictures"),
        *("response_store_mib", "responses_per_key", "response_seconds"),
        *("tls_cert", "tls_key", "tls_client_ca", "insecure", "gateway"),
        # Addresses, and peers trusted with prompts and memory.
        *("bind", "http_bind", "handover_bind", "name", "advertise", "etcd", "etcd_prefix"),
        *("http_etcd", "http_advertise", "etcd_ca", "etcd_login"),
        *("prefill", "prefill_file", "prefill_ca"),
        *("remote_cache", "remote_endpoint", "remote_credentials"),
        # The model, and the settings that peers must share.
        *(
            "model",
            "revision",
            "max_model_len",
            "served_model_name",
            *("messages_thinking", "stop_strings", "strict_fields", "whole_calls"),
            "generation_config",
            "dtype",
            "kv_dtype",
            "ssm_dtype",
            "step_activations",
            "attention_split",
            "drafter",
            "ngram_table",
            "draft_layer",
            *("device", "vision"),
            "disk_cache",
            "transport",
        ),
        *("wire_kv", "wire_state", "wire_staging_mib", "lease_seconds"),
        # Files, collectors, and the process itself.
        *("other_role_config", "otlp_endpoint", "log_format", "metrics", "metrics_compat"),
        "engine_process",
        "front_workers",
        *("tensor_parallel", "expert_parallel", "rank_timeout"),
        "exit_with_parent",
        "watchdog_timeout",
    }
)
"""Keys, certificates, addresses, peers, the model: never by a call."""

ONCE = RetryPolicy(attempts=1)
HALF = NEW_TOKENS // 2
# This node is no front door now.
ELSEWHERE = (grpc.StatusCode.UNIMPLEMENTED,)


class Callers:
    """Callers that ask questions over and over at any answering node, until told to stop."""

    def __init__(self, addresses: tuple[str, ...], asked: tuple[Question, ...]) -> None:
        self._addresses = addresses
        self._questions = asked
        self._over = threading.Event()
        self.answers = 0

    def run(self, caller: int) -> None:
        turn = 0
        while not self._over.is_set():
            turn += 1
            question = self._questions[(caller + turn) % len(self._questions)]
            salt = f"{caller}-{turn}".encode()
            answer = self._answer(question, salt, start=caller + turn)
            assert answer.token_ids == question.tokens
            self.answers += 1

    def _answer(self, question: Question, salt: bytes, start: int) -> Answer:
        refusals: list[str] = []
        for attempt in range(200):
            address = self._addresses[(start + attempt) % len(self._addresses)]
            try:
                with Client(address, retry=ONCE) as client:
                    return client.generate(
                        Prompt(token_ids=question.prompt),
                        max_new_tokens=len(question.tokens),
                        ignore_eos=True,
                        cache_salt=salt,
                    ).result()
            except ClientError as error:
                assert is_transient(error) or error.status in ELSEWHERE, error
                refusals.append(str(error))
            self._over.wait(0.05)
        raise AssertionError(f"nobody answers: {refusals[-3:]}")

    def stop(self) -> None:
        self._over.set()


def change(node: Node, role: str, **settings: str) -> None:
    with open_channel(node.address, None) as channel:
        asking = bearing(channel, node.api_key) if node.api_key else channel
        change_role(asking, role, settings, wait_seconds=60)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_nodes_swap_roles_under_load(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as etcd, fleet() as start:
        shared = [*flags(), "--etcd", etcd.url, "--local-prefill-tokens", "64"]
        one = start("prefill", *shared, "--name", "one")
        other = start("decode", *shared, "--name", "other")
        asked_for = tuple(question_of(other, length, HALF) for length in (150, 300))
        callers = Callers((one.address, other.address), asked_for)
        with ThreadPoolExecutor(3) as pool:
            running = [pool.submit(callers.run, caller) for caller in range(3)]
            try:
                until(lambda: other.arrived() > 0, other.story)
                # Two front doors for a while, then the first has a prefill node again.
                change(one, "decode")
                change(other, "prefill")
                until(lambda: one.arrived() > 0, one.story)
            finally:
                callers.stop()
            for caller in running:
                caller.result()
        assert callers.answers > 4
        for node in (one, other):
            node.assert_at_rest()
        # Idle, and by the command.
        assert role_command(["decode", "--target", other.address]) == 0
        assert asked(other, asked_for[0].prompt, b"idle").result().token_ids


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_a_node_that_comes_back_to_a_role_has_what_it_had_there(tmp_path: Path) -> None:
    """Without any message about peers, its peers are the ones from its start."""
    require_nixl()
    other = tmp_path / "prefill.toml"
    other.write_text('name = "swapped"\nprefill_chunk_tokens = 64\n', encoding="utf-8")
    with fleet() as start:
        prefill = start("prefill", *flags())
        decode = start(
            *("decode", *flags(), "--local-prefill-tokens", "64", "--prefill", prefill.address),
            *("--other-role-config", str(other), "--api-key", "secret"),
        )
        question = question_of(decode, 300, HALF)
        meet(decode)
        for turn in range(2):
            arrived = decode.arrived()
            answer = asked(decode, question.prompt, f"{turn}".encode(), HALF).result()
            assert answer.token_ids == question.tokens
            assert answer.usage.prefilled_on == "prefill"
            assert decode.arrived() > arrived
            change(decode, "prefill", max_batch="7")
            assert decode.stats().role == pb.NODE_ROLE_PREFILL
            # These changes once opened the node to all callers, or sent its prompts elsewhere.
            for attack in ({"api_keys": "", "api_key": ""}, {"prefill": "127.0.0.1:9"}):
                with pytest.raises(ClientError, match="is not changed by a call") as refused:
                    change(decode, "decode", **attack)
                assert refused.value.kind == "invalid"
            assert stranger_s_status(decode) is grpc.StatusCode.UNAUTHENTICATED
            change(decode, "decode")
            until(lambda: bool(decode.stats().prefill_nodes), decode.story)
            (peer,) = decode.stats().prefill_nodes
            assert peer.address == prefill.address
            until(
                lambda: decode.stats().prefill_nodes[0].state == pb.PREFILL_NODE_STATE_CONNECTED,
                decode.story,
            )


def stranger_s_status(node: Node) -> grpc.StatusCode:
    with grpc.insecure_channel(node.address) as channel, pytest.raises(grpc.RpcError) as refused:
        pb_grpc.CacheAdminStub(channel).Stats(pb.StatsRequest(), timeout=HANG_SECONDS)
    status: grpc.StatusCode = refused.value.code()
    return status


def make_change(role: str = "prefill", **changes: object) -> tuple[RoleChange, list[int]]:
    front = ServerConfig(api_key="secret", **changes)  # type: ignore[arg-type]
    own: object = PrefillConfig(advertise="10.0.0.1:7")
    if role == "decode":
        own = DecodeConfig(prefill="10.0.0.2:7")
    return RoleChange(role, (EngineConfig(model="m"), front, own)), []


CARRIED = {
    "model": "m",
    "api_key": "secret",
    "drain_timeout": 7.0,
    "bind": "127.0.0.1:7",
    "http_bind": "",
}


def test_what_the_new_role_would_refuse_changes_nothing() -> None:
    role, stops = make_change(drain_timeout=7.0)
    with pytest.raises(RoleFixed, match="still starting"):
        role.ask("decode", {})
    role.offer("127.0.0.1:7", None, lambda: stops.append(1))
    with pytest.raises(InvalidRequest, match="role must be"):
        role.ask("", {})
    with pytest.raises(InvalidRequest, match=r"settings\.advertise is no setting of a decode"):
        role.ask("decode", {"advertise": "127.0.0.1:7"})
    with pytest.raises(InvalidRequest, match="arena-mib"):
        role.ask("decode", {"arena_mib": "much"})
    role.ask("prefill", {})
    assert role.wanted is None and not stops
    role.ask("decode", {"max_batch": "3"})
    role.ask("decode", {})
    assert role.wanted is not None and stops == [1]
    assert role.wanted.settings == {**CARRIED, "max_batch": "3"}
    assert role.wanted.left["advertise"] == "10.0.0.1:7" and role.wanted.left["max_batch"] == "auto"
    with pytest.raises(RoleFixed, match="becoming a decode node"):
        role.ask("prefill", {})


def test_sizes_that_are_left_open_stay_open_in_either_role() -> None:
    role, stops = make_change(drain_timeout=7.0)
    role.offer("127.0.0.1:7", None, lambda: stops.append(1))
    role.ask("decode", {"max_batch": "auto"})
    assert role.wanted is not None
    assert role.wanted.settings == {**CARRIED, "max_batch": "auto"}
    sizes = {name: role.wanted.left[name] for name in ("arena_mib", "max_batch")}
    # The new process reads them from a file of text and numbers.
    read = read_configs(flags_of(json.loads(json.dumps(sizes))), EngineConfig, ServerConfig)
    assert read[0] == EngineConfig()


@pytest.mark.parametrize("to", ["prefill", "decode"])
def test_a_call_never_says_who_may_ask_where_a_node_is_or_whom_it_trusts(to: str) -> None:
    role, stops = make_change("decode" if to == "prefill" else "prefill")
    role.offer("127.0.0.1:7", None, lambda: stops.append(1))

    def is_refused(name: str, value: str) -> bool:
        try:
            role.ask(to, {"max_batch": "3", name: value})
        except InvalidRequest as error:
            return f"settings.{name} is" in str(error) and role.wanted is None
        return False

    taken = [
        (name, value)
        for name in sorted(FIXED)
        for value in ("", "127.0.0.1:9")
        if not is_refused(name, value)
    ]
    assert not taken and not stops


def test_every_setting_of_a_node_is_either_tuned_by_calls_or_fixed() -> None:
    configs = (EngineConfig, ServerConfig, PrefillConfig, DecodeConfig)
    names = {item.name for config in configs for item in fields(config)}
    assert not TUNING & FIXED
    unsorted = names ^ (TUNING | FIXED)
    assert not unsorted, f"decide whether a call may set {sorted(unsorted)}: TUNING or FIXED"
    risky = re.compile("key|tls|bind|insecure|model|prefill($|_ca|_file)|etcd|advertise|endpoint")
    assert {name for name in names if risky.search(name)} <= FIXED


def test_the_other_role_s_file_is_what_it_starts_with_and_comes_back_to(tmp_path: Path) -> None:
    file = tmp_path / "decode.toml"
    file.write_text('prefill = "10.0.0.2:7"\nmax-batch = 9\n', encoding="utf-8")
    front = ServerConfig(api_key="secret", drain_timeout=7.0)
    own = PrefillConfig(advertise="10.0.0.1:7", other_role_config=str(file))
    role = RoleChange("prefill", (EngineConfig(model="m"), front, own))
    role.offer("127.0.0.1:7", None, lambda: None)
    role.ask("decode", {"max_batch": "3"})
    assert role.wanted is not None
    assert role.wanted.settings == {**CARRIED, "prefill": "10.0.0.2:7", "max_batch": "3"}
    assert "other_role_config" not in role.wanted.left


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('prefill = "nowhere"', "HOST:PORT"),
        ('advertise = "10.0.0.1:7"', "unknown key advertise"),
        ("prefill", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_start_for_the_other_role_keeps_a_node_from_starting(
    tmp_path: Path, text: str | None, part: str
) -> None:
    file = tmp_path / "decode.toml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    own = PrefillConfig(other_role_config=str(file))
    with pytest.raises((InvalidRequest, ConfigFileError), match=part):
        RoleChange("prefill", (EngineConfig(model="m"), ServerConfig(), own))


def test_a_file_that_broke_since_keeps_a_node_in_its_role(tmp_path: Path) -> None:
    file = tmp_path / "decode.toml"
    file.write_text("max_batch = 9", encoding="utf-8")
    own = PrefillConfig(other_role_config=str(file))
    role = RoleChange("prefill", (EngineConfig(model="m"), ServerConfig(), own))
    role.offer("127.0.0.1:7", None, lambda: None)
    file.unlink()
    with pytest.raises(RoleFixed, match="cannot be read"):
        role.ask("decode", {})
    assert role.wanted is None
