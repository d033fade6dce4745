"""Tests of commands typed by users of other engines: a model's name, --port, --max-model-len,
--help, and a command at the wrong port."""

import http.server
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from tasuki.cli import explain
from tasuki.cli import main as cli
from tasuki.cli.recording.record import RecordConfig
from tasuki.cli.top import TopConfig
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.decode_node.config import DecodeConfig
from tasuki.engine.assembly.parts import with_context
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.model.named_checkpoints import HubError, embedded_model, hub_checkpoint, is_hub_name
from tasuki.prefill_node.config import PrefillConfig
from tasuki.server.bind import BindError
from tasuki.server.config import ServerConfig
from tasuki.server.daemon import serve_config
from tasuki.server.daemon.serve_config import HttpAddress
from tasuki.server.daemon.startup import with_local_checkpoint
from tasuki.utils.flags import FlagError, parse_configs, read_configs
from tests.harness.daemons import Node, flags
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_calls import fetched
from tests.harness.programs import error_line, exit_status
from tests.harness.qwen35 import load_config
from tests.harness.running_nodes import running

GIB = 2**30


# The model


@pytest.mark.parametrize("place", [0, 2, 4])
def test_the_model_may_stand_without_its_flag(place: int) -> None:
    argv = ["--dtype", "float32", "--max-batch", "3"]
    argv.insert(place, "Qwen/Qwen3.5-9B")
    engine, _ = read_configs(argv, EngineConfig, ServerConfig)
    assert (engine.model, engine.dtype, engine.max_batch) == ("Qwen/Qwen3.5-9B", "float32", 3)


def test_a_settings_file_has_the_model_unless_the_command_line_has(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('model = "here"\nmax_batch = 7\n')
    for more, model in (([], "here"), (["there"], "there"), (["--model", "there"], "there")):
        engine, _ = read_configs(["--config", str(file), *more], EngineConfig, ServerConfig)
        assert (engine.model, engine.max_batch) == (model, 7)


def test_a_folder_stays_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "mine").mkdir(parents=True)
    for model in ("models/mine", str(tmp_path), "./models/yours", "/models/yours", "9b"):
        assert not is_hub_name(model)
        configs = EngineConfig(model=model), ServerConfig()
        assert with_local_checkpoint(*configs) == configs
    assert is_hub_name("models/yours")
    with pytest.raises(EngineConfigError, match="only those have revisions"):
        with_local_checkpoint(EngineConfig(model="models/mine", revision="v1"), ServerConfig())


def test_a_named_model_is_its_snapshot_and_keeps_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def snapshot(name: str, **more: Any) -> str:
        asked.append((name, more["revision"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    named = EngineConfig(model="Qwen/Qwen3.5-9B", revision="v1")
    engine, server = with_local_checkpoint(named, ServerConfig())
    assert (engine.model, engine.revision) == (str(tmp_path), "")
    assert server.served_model_name == "Qwen/Qwen3.5-9B"
    _, server = with_local_checkpoint(named, ServerConfig(served_model_name="mine"))
    assert server.served_model_name == "mine" and asked == [("Qwen/Qwen3.5-9B", "v1")] * 2


def response(status: int) -> Any:
    import httpx2

    return httpx2.Response(status, request=httpx2.Request("GET", "https://huggingface.co"))


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (lambda: errors.RepositoryNotFoundError("no", response=response(404)), "set HF_TOKEN"),
        (lambda: errors.GatedRepoError("no", response=response(403)), "set HF_TOKEN"),
        (lambda: errors.RevisionNotFoundError("no", response=response(404)), "check --revision"),
        (lambda: errors.LocalEntryNotFoundError("no"), "where there is a network, or give"),
        (lambda: ConnectionError("no"), "where there is a network, or give a folder"),
    ],
)
def test_a_name_that_cannot_be_had_is_a_typed_error(
    error: Any, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def snapshot(name: str, **more: Any) -> str:
        raise error()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(HubError, match=part) as raised:
        hub_checkpoint("ann/tiny", "v1")
    assert str(raised.value).startswith("model ann/tiny at revision v1")


def test_a_cached_model_is_served_by_its_name_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--ann--tiny"
    snapshot = repository / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(embedded_model(), snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    small = ("--device", "cpu", "--arena-mib", "64", "--max-model-len", "200")
    with running(Node("serve", "ann/tiny", *small, "--port", "0")) as node:
        (card,) = json.loads(fetched(node.http_address, "/v1/models"))["data"]
        assert (card["id"], card["max_model_len"]) == ("ann/tiny", 200)
        answer = node.client.generate(Prompt(text="It was"), max_new_tokens=3).result()
        assert len(answer.token_ids) == 3


# Sizes


def test_the_context_is_as_long_as_asked() -> None:
    model = load_config(embedded_model())
    assert with_context(model, EngineConfig()) == model
    assert with_context(model, EngineConfig(max_model_len=100)).max_position == 100
    with pytest.raises(EngineConfigError, match="is more than the"):
        with_context(model, EngineConfig(max_model_len=model.max_position + 1))


def test_a_part_of_the_gpu_bounds_what_is_free_of_it() -> None:
    assert EngineConfig().usable_of(70 * GIB, 80 * GIB) == 70 * GIB
    half = EngineConfig(gpu_memory_utilization=0.5)
    assert half.usable_of(70 * GIB, 80 * GIB) == 40 * GIB
    assert half.usable_of(30 * GIB, 80 * GIB) == 30 * GIB
    for wrong in (0.0, 1.1):
        with pytest.raises(EngineConfigError, match="gpu_memory_utilization must be in"):
            EngineConfig(gpu_memory_utilization=wrong)
    with pytest.raises(EngineConfigError, match="give one of them"):
        EngineConfig(gpu_memory_utilization=0.5, arena_mib=100)


def test_the_plan_follows_both(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "Qwen/Qwen3.5-9B", "--dry-run", "--gpu", "100000"]
    more = ["--max-model-len", "32768", "--gpu-memory-utilization", "0.5"]
    assert cli.main([*flags, *more]) == 0
    said = capsys.readouterr().out
    assert "50000 MiB" in said and "32768 tokens" in said and "the plan fits" in said


# Addresses


def test_serve_has_http_at_port_8000_unless_told_otherwise() -> None:
    assert HttpAddress(port=7).bind("") == "127.0.0.1:7"
    assert HttpAddress(host="::1", port=7).bind("") == "[::1]:7"
    assert HttpAddress().bind("127.0.0.2:9") == "127.0.0.2:9"
    assert HttpAddress(no_http=True).bind("") == ""
    with pytest.raises(BindError, match="give it, or --host and --port"):
        HttpAddress(port=7).bind("127.0.0.1:9")


def test_a_second_node_serves_http_at_another_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(serve_config, "DEFAULT_PORT", taken.getsockname()[1])
        assert HttpAddress().bind("") == "127.0.0.1:0"


@pytest.mark.parametrize(
    ("given", "status", "named"),
    [
        (["--http-bind", "8000"], 2, "http_bind '8000' is not HOST:PORT"),
        (["--bind", "x"], 2, "bind 'x' is not HOST:PORT"),
        (["--port", "70000"], 2, "port must be in [0, 65535]"),
        (["--port", "1", "--http-bind", "127.0.0.1:2"], 1, "http_bind has the host and port"),
        (["--port", "1", "--no-http"], 1, "no_http excludes port: leave it out"),
        (["--no-http", "--port", "1", "--host", "::1"], 1, "no_http excludes host and port"),
        (["--no-http", "--http-bind", "127.0.0.1:2"], 1, "no_http excludes http_bind"),
    ],
)
def test_an_address_s_error_names_what_was_given(
    given: list[str], status: int, named: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(["serve", *flags(), *given]) == status
    assert named in error_line(capfd)


def test_http_off_loopback_is_refused_by_its_own_name(capfd: pytest.CaptureFixture[str]) -> None:
    given = ["--bind", "127.0.0.1:0", "--host", "0.0.0.0", "--port", "0"]
    assert exit_status(["serve", *flags(), *given]) == 1
    assert "http_bind 0.0.0.0:0 is not a loopback address" in error_line(capfd)


# --help


@pytest.mark.parametrize(
    "configs",
    [
        (EngineConfig, ServerConfig, HttpAddress),
        (EngineConfig, ServerConfig, PrefillConfig),
        (EngineConfig, ServerConfig, DecodeConfig),
    ],
)
def test_help_is_a_dozen_lines_and_names_where_the_rest_is(
    configs: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_configs("tasuki node", "A node.", ["--help"], *configs)
    said = capsys.readouterr().out.splitlines()
    flags = [line for line in said if line.startswith("  --")]
    assert 12 <= len(flags) <= 20 and max(map(len, said)) <= 100
    # Each flag has one line, without a continuation.
    assert not [line for line in said if line.startswith(" " * 20)]
    assert all("TEXT" not in line for line in flags)
    more = int(said[-1].split()[0])
    with pytest.raises(SystemExit):
        parse_configs("tasuki node", "A node.", ["--help-all"], *configs)
    whole = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  --")]
    assert said[-1].endswith("tasuki node --help-all") and len(whole) == len(flags) + more


@pytest.mark.parametrize(
    "configs",
    [
        (EngineConfig, ServerConfig, HttpAddress),
        (EngineConfig, ServerConfig, PrefillConfig),
        (EngineConfig, ServerConfig, DecodeConfig),
    ],
)
def test_help_is_grouped_and_shows_units(configs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_configs("tasuki node", "A node.", ["--help-all"], *configs)
    said = capsys.readouterr().out
    headings = [line[:-1] for line in said.splitlines() if line[:1].isupper() and line[-1] == ":"]
    assert headings[:2] == ["Model", "Memory and batches"] and "Other" not in headings
    assert len(headings) == len(set(headings))
    for part in ("usage: tasuki node [MODEL] [FLAGS]", "--arena-mib MIB", "--max-itl-ms MS"):
        assert part in said
    assert "--ttft-target SECONDS" in said
    assert "--drain-timeout SECONDS" in said and "--http-bind HOST:PORT" in said
    assert "default: )" not in said and "default: None" not in said


@pytest.mark.parametrize(
    "given",
    [
        *(
            f"--{name}={value}"
            for name in ("queue-timeout", "ttft-target")
            for value in ("nan", "inf")
        ),
        *("--watchdog-timeout=1e300", "--queue-timeout=1e9", "--session-idle-seconds=nan"),
        *("--session-idle-seconds=-1", "--drain-timeout=1e300", "--response-seconds=inf"),
    ],
)
def test_a_time_that_no_clock_can_wait_for_is_refused(given: str) -> None:
    name = given[2:].partition("=")[0].replace("-", "_")
    with pytest.raises(FlagError, match=f"{name} must be .* not "):
        read_configs([given], EngineConfig, ServerConfig)


def test_a_second_argument_is_no_flag() -> None:
    with pytest.raises(FlagError, match="unexpected argument b: flags begin with --"):
        read_configs(["a", "b"], EngineConfig, ServerConfig)


def test_an_unknown_flag_is_still_one_line() -> None:
    with pytest.raises(FlagError, match="did you mean --max-model-len"):
        read_configs(["--max-model-length", "5"], EngineConfig, ServerConfig)


# At the wrong port


@contextmanager
def speaking(handler: Any) -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    "argv",
    [["explain", "r", "--target"], ["chat", "--target"], ["role", "decode", "--target"]],
)
def test_a_port_without_grpc_is_one_line(
    argv: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with speaking(Quiet) as address:
        assert cli.main([*argv, address]) == 1
    line = error_line(capfd)
    assert f"nothing at {address} speaks" in line and "is a node running there?" in line


def test_a_port_without_http_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with running_front() as front:
        assert cli.main(["top", "--http", front.address]) == 1
        line = error_line(capfd)
        assert "has no HTTP server" in line and "--http-bind" in line and "\\x" not in line
    with speaking(Quiet) as address:
        assert cli.main(["top", "--http", address]) == 1
    assert "is a node running there?" in error_line(capfd)


class Guarded(Quiet):
    def do_GET(self) -> None:
        self.send_response(403)
        self.end_headers()
        self.wfile.write(b'{"error": {"message": "GET /debug/stream needs the scope operator"}}')


def test_a_key_that_a_node_refuses_is_the_node_s_own_story(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with speaking(Guarded) as address:
        assert cli.main(["top", "--http", address, "--api-key", "k"]) == 1
    line = error_line(capfd)
    assert (
        "GET /debug/stream needs the scope operator (--api-key)" in line and "running" not in line
    )


@pytest.mark.parametrize("shown", ["r1", "chatcmpl-r1", "cmpl-r1"])
def test_an_answer_s_id_is_explained(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    with running_front() as front, Client(front.address) as client:
        client.generate(Prompt(token_ids=[5, 6, 7]), request_id="r1").result()
        assert explain.main([shown, "--target", front.address]) == 0
    assert "request r1, ended" in capsys.readouterr().out


# Addresses and URLs


@pytest.mark.parametrize(
    ("config", "flag", "value"),
    [
        (ServerConfig, "http-etcd", "foo"),
        (ServerConfig, "http-etcd", "http://:2379"),
        (ServerConfig, "otlp-endpoint", "foo:4317"),
        (ServerConfig, "otlp-endpoint", "http://host:port"),
        (ServerConfig, "allowed-origins", "foo bar"),
        (ServerConfig, "allowed-origins", "https://a.example/path"),
        (PrefillConfig, "etcd", "foo"),
        (PrefillConfig, "etcd-prefix", ""),
        (PrefillConfig, "advertise", "foo"),
        (PrefillConfig, "handover-bind", "foo"),
        (DecodeConfig, "etcd", "127.0.0.1:2379"),
        (TopConfig, "screens", "-1"),
        (RecordConfig, "seconds", "-1"),
        (RecordConfig, "seconds", "nan"),
    ],
)
def test_a_setting_of_another_form_is_refused_by_its_name(
    config: type[Any], flag: str, value: str
) -> None:
    with pytest.raises(ValueError, match=flag.replace("-", "_")):
        read_configs([f"--{flag}={value}"], config)


@pytest.mark.parametrize("url", ["http://x", "s3://", "s3://user:secret@bucket", "s3://b?c"])
def test_a_remote_cache_of_another_form_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(EngineConfigError, match="remote_cache is not s3://BUCKET") as refusal:
        EngineConfig("m", remote_cache=url, remote_cache_gib=1.0, host_cache_gib=1.0)
    assert "secret" not in str(refusal.value)


def test_addresses_and_origins_of_the_usual_forms_are_taken() -> None:
    ServerConfig(
        http_etcd="https://[::1]:2379",
        otlp_endpoint="http://collector:4317",
        allowed_origins="*, https://chat.example, app://obsidian.md, http://localhost:3000/",
    )
    PrefillConfig(advertise="[::1]:50061", handover_bind="0.0.0.0:0", etcd="http://etcd:2379")
