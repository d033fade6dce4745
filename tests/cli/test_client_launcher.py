"""Real daemons as child processes: ready, answering, drained, never orphaned."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.cli import demo as demo_script
from tasuki.cli import launcher
from tasuki.cli import main as cli
from tasuki.cli.launcher import Daemon, fused
from tasuki.client.errors import ClientError, LaunchError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.text_codec import TextCodec
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.goldens import MODELS, reference_dir
from tests.harness.processes import gone
from tests.harness.random_checkpoint import write_random_model
from tests.harness.waiting import HANG_SECONDS, until


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    write_random_model(path)
    return path


@pytest.fixture(scope="module")
def flags(folder: Path) -> list[str]:
    return ["--model", str(folder), "--dtype", "float32", "--arena-mib", "64"]


@pytest.fixture
def daemon(flags: list[str]) -> Iterator[Daemon]:
    child = ForkedDaemon("serve", flags)
    yield child
    child.stop()


def test_a_daemon_answers_and_ends_with_status_0(flags: list[str]) -> None:
    daemon = Daemon("serve", flags)
    with Client(daemon.wait_ready()) as client, client.open_session() as session:
        session.append(Prompt(messages=[{"role": "user", "content": "Good morning."}]))
        first = session.generate(max_new_tokens=5).result()
        session.append(Prompt(messages=[{"role": "user", "content": "And good night."}]))
        second = session.generate(max_new_tokens=5).result()
        assert first.reason in (m.FinishReason.LENGTH, m.FinishReason.STOP)
        hit = second.usage.hit
        assert hit is not None and hit.usable_tokens >= first.usage.prompt_tokens
        stats = client.stats()
        assert stats.integrity == "ok"
    assert daemon.stop() == 0
    assert gone(daemon.pid)


def test_a_second_signal_ends_a_drain_at_once(daemon: Daemon) -> None:
    address = daemon.wait_ready()
    with Client(address) as client, grpc.insecure_channel(address) as channel:
        stream = client.generate(Prompt(text="It was"), max_new_tokens=9000, ignore_eos=True)
        next(iter(stream))
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        daemon.ask_to_stop()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        os.kill(daemon.pid, signal.SIGTERM)
        with pytest.raises(ClientError):
            stream.result()
    assert daemon.stop() == 128 + signal.SIGTERM


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    child = ForkedDaemon("serve", ["--model", str(tmp_path)])
    try:
        with pytest.raises(LaunchError, match=r"tasuki serve ended with status 1: .*config\.json"):
            child.wait_ready()
    finally:
        child.stop()


def test_a_child_that_is_slow_is_named(daemon: Daemon) -> None:
    with pytest.raises(LaunchError, match="was not ready within 0 s"):
        daemon.wait_ready(timeout=0.01)


def test_no_child_outlives_a_killed_caller(flags: list[str]) -> None:
    source = (
        "import os, signal, sys\n"
        "from tasuki.cli.launcher import Daemon\n"
        "daemon = Daemon('serve', sys.argv[1:])\n"
        "daemon.wait_ready()\n"
        "print(daemon.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    caller = subprocess.run(
        [sys.executable, "-c", source, *flags],
        stdout=subprocess.PIPE,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert caller.returncode == -signal.SIGKILL
    pid = int(caller.stdout)
    until(lambda: gone(pid), "the daemon lives on")


def test_a_failing_caller_stops_its_daemons(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "Daemon", ForkedDaemon)
    with pytest.raises(ZeroDivisionError), fused(flags) as address:
        with Client(address) as client:
            client.stats()
        raise ZeroDivisionError
    with Client(address) as client, pytest.raises(ClientError):
        client.stats()


@pytest.mark.parametrize("where", ["local", "prefill"])
@pytest.mark.parametrize("name", MODELS)
def test_generate_prints_the_golden_tokens(
    name: str,
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if (name, where) != (MODELS[0], "prefill"):
        # Only the excepted case starts interpreters, as the command does.
        monkeypatch.setattr(launcher, "Daemon", ForkedDaemon)
    folder = reference_dir(name)
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([case["prompt"] for case in cases]))
    longest = max(len(case["greedy"]) for case in cases)
    argv = ["generate", "--model", str(folder), "--prompt-ids", str(path), "--json"]
    argv += ["--max-new-tokens", str(longest), "--dtype", "float32", "--ignore-eos"]
    argv += ["--disaggregated"] if where == "prefill" else []
    assert cli.main(argv) == 0
    answers = json.loads(capsys.readouterr().out)
    for case, answer in zip(cases, answers, strict=True):
        greedy = case["greedy"]
        assert answer["token_ids"][: len(greedy)] == greedy, case["name"]
        assert answer["usage"]["prompt_tokens"] == len(case["prompt"])
        assert answer["usage"]["prefilled_on"] == where


def test_generate_drafts_as_many_as_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expect equal counts in each run, however long steps take on this machine."""
    monkeypatch.setattr(launcher, "Daemon", ForkedDaemon)
    folder = reference_dir(MODELS[0])
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    case = max(cases, key=lambda case: len(case["greedy"]))
    prompts, predictions = tmp_path / "prompts.json", tmp_path / "predictions.json"
    prompts.write_text(json.dumps([case["prompt"]] * 2))
    predictions.write_text(json.dumps([case["greedy"], []]))
    length = len(case["greedy"])
    argv = ["generate", "--model", str(folder), "--prompt-ids", str(prompts), "--json"]
    argv += ["--max-new-tokens", str(length), "--dtype", "float32", "--ignore-eos"]
    argv += ["--speculate", "prediction", "--prediction", str(predictions), "--draft-tokens", "3"]
    assert cli.main(argv) == 0
    answer, undrafted = json.loads(capsys.readouterr().out)
    assert answer["token_ids"] == undrafted["token_ids"] == case["greedy"]
    assert undrafted["usage"]["accepted_prediction_tokens"] == 0
    assert undrafted["usage"]["rejected_prediction_tokens"] == 0
    usage = answer["usage"]
    assert usage["drafted_tokens"] == usage["accepted_prediction_tokens"]
    assert usage["accepted_tokens"] >= 3 * ((length - 1) // 4)


def test_the_script_is_ten_turns_of_several_hundred_tokens(folder: Path) -> None:
    template = TextCodec.load(folder, 1024, 32768).require_template()
    turns = demo_script.scripted_turns()
    assert len(turns) == 10
    for turn in turns:
        messages = [ChatMessage(message["role"], message["content"]) for message in turn]
        assert len(template.continuation(messages).tokens) >= 300
    edits = [turn[0]["content"] for turn in demo_script.edited_turns()]
    assert len(edits) == 2
    for edit in edits:
        pairs = zip(edit, turns[-1][-1]["content"], strict=False)
        shared = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        assert len(template.continuation([ChatMessage("user", shared)]).tokens) >= 2 * PAGE_TOKENS
        assert edit != shared
