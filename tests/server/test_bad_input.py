"""Tests of bad input at the command line and at real daemons. The answer is one line or one typed
status with the field's name, and daemons continue unharmed."""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from safetensors.torch import load_file, save_file

from tasuki.client.errors import ClientError
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import handover_pb2, inference_pb2
from tests.harness.daemons import Node, asked, flags, meet, random_prompt
from tests.harness.programs import error_line, exit_status
from tests.harness.refusals import INVALID, refusal
from tests.harness.running_nodes import needs_nixl, refused_start, running
from tests.harness.waiting import HANG_SECONDS

GARBAGE = b"\xff\xff\xff"

# The command line


def change_config(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def drop_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        file.unlink()


def drop_tensor(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights[next(name for name in sorted(weights) if "layers.3." in name)]
    save_file(weights, folder / "model.safetensors")


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def corrupt(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(8)
        file.write(b"\x00" * 64)


@pytest.mark.parametrize(
    ("damage", "parts"),
    [
        (shutil.rmtree, ["config.json", "Hugging Face layout"]),
        (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
        (lambda f: change_config(f, model_type="llama"), ["model_type", "'llama'", "qwen3_5"]),
        (
            lambda f: change_config(f, model_type="qwen4_exp"),
            ["config.json: indexer_n_heads is missing", "copy the published one"],
        ),
        (truncate, ["model.safetensors", "truncated or corrupt", "fetch it again"]),
        (corrupt, ["model.safetensors", "truncated or corrupt", "fetch it again"]),
        (drop_tensor, ["layers.3.", "is missing"]),
        (drop_weights, ["*.safetensors"]),
        (lambda f: (f / "tokenizer.json").write_text("{"), ["tokenizer.json"]),
    ],
)
def test_a_damaged_checkpoint_is_one_line(
    damage: Callable[[Path], object],
    parts: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(embedded_model(), folder)
    damage(folder)
    assert exit_status(["serve", *flags(folder), "--bind", "127.0.0.1:0"]) == 1
    line = error_line(capfd)
    assert line.startswith("tasuki: error: ") and all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("argv", "status", "parts"),
    [
        (
            ["prefill", "--prefil", "x"],
            2,
            ["--prefil:", "did you mean --prefill-chunk-tokens?"],
        ),
        (["decode", "--prefil", "x"], 2, ["unknown flag --prefil", "did you mean --prefill?"]),
        (["decode", "--prefill", "there"], 2, ["prefill: 'there' is not HOST:PORT"]),
        (["decode", "--prefill", "there:70000"], 2, ["'there:70000' is not HOST:PORT"]),
        (["prefill", "--layers-per-window", "0"], 2, ["layers_per_window must be at least 1"]),
        (["prefill", "--lease-seconds", "nan"], 2, ["lease_seconds must be positive"]),
        (["prefill", "--lease-seconds", "601"], 2, ["lease_seconds", "600 at most", "601"]),
        (["decode", "--lease-seconds", "86400"], 2, ["lease_seconds", "600 at most", "86400"]),
        (["prefill"], 1, ["model is not set", "huggingface.co"]),
        (["decode", *flags(arena_mib=1)], 1, ["arena_mib 1", "give at least"]),
        (["serve", *flags(arena_mib=2**35)], 1, ["arena_mib 34359738368", "give less"]),
    ],
)
def test_settings_that_cannot_work_are_one_line(
    argv: list[str], status: int, parts: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert exit_status(argv) == status
    line = error_line(capfd)
    assert line.startswith("tasuki") and "error: " in line, line
    assert all(part in line for part in parts), line


@needs_nixl
def test_a_port_that_is_taken_ends_each_daemon_with_its_name() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        for command in ("prefill", "decode"):
            last = refused_start(command, *flags(), bind=bind)[-1]
            assert last.startswith(f"tasuki: error: bind {bind} failed") and "port 0" in last


# Daemons


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    """Yield a prefill node with the smaller arena: a prompt may fit on the decode node but not
    here."""
    with running(Node("prefill", *flags(arena_mib=16))) as node:
        yield node
        node.assert_at_rest()


@pytest.fixture(scope="module")
def decode(prefill: Node) -> Iterator[Node]:
    with running(Node("decode", *flags(arena_mib=32), "--prefill", prefill.address)) as node:
        meet(node)
        yield node
        node.assert_at_rest()


@needs_nixl
@pytest.mark.parametrize(
    ("prompt", "kind", "parts"),
    [
        ((), "invalid", ["prompt is empty"]),
        ((5, 2048), "invalid", ["token_ids has 2048", "[0, 2048)"]),
        ((-1,), "invalid", ["token_ids has -1"]),
        (random_prompt(32768, 0), "too_long", ["32768 tokens", "context is 32768"]),
        (random_prompt(20000, 0), "too_long", ["20000 tokens", "at most", "ask for fewer"]),
    ],
    ids=["empty", "above", "below", "model", "arena"],
)
def test_a_prompt_that_cannot_be_served_is_refused(
    decode: Node, prompt: tuple[int, ...], kind: str, parts: list[str]
) -> None:
    with pytest.raises(ClientError) as caught:
        asked(decode, prompt, b"").result()
    assert caught.value.status is INVALID and caught.value.kind == kind
    assert all(part in str(caught.value) for part in parts), caught.value
    decode.assert_at_rest()


@needs_nixl
def test_a_prompt_too_long_for_the_prefill_node_alone_is_answered(decode: Node) -> None:
    usage = asked(decode, random_prompt(4000, 0), b"").result().usage
    assert usage.prefilled_on == "local" and usage.local_fallback
    decode.assert_at_rest()


def methods(module: ModuleType) -> list[tuple[str, str]]:
    """Return the arity in grpc.Channel's words and the path of each method of a .proto file."""
    return [
        (
            f"{'stream' if method.client_streaming else 'unary'}_"
            f"{'stream' if method.server_streaming else 'unary'}",
            f"/{service.full_name}/{method.name}",
        )
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    ]


@needs_nixl
def test_malformed_bytes_are_refused_by_every_method(prefill: Node, decode: Node) -> None:
    everywhere = [*methods(health_pb2), *methods(reflection_pb2)]
    admin = [item for item in methods(inference_pb2) if "CacheAdmin" in item[1]]
    served = {
        decode.address: [*everywhere, *methods(inference_pb2)],
        prefill.address: [*everywhere, *admin, *methods(handover_pb2)],
    }
    assert len(served[decode.address]) == 21 and len(served[prefill.address]) == 19
    for address, paths in served.items():
        with grpc.insecure_channel(address) as channel:
            for arity, path in paths:
                request = iter([GARBAGE]) if arity.startswith("stream") else GARBAGE
                call = getattr(channel, arity)(path)
                refused = refusal(call, request, timeout=HANG_SECONDS)
                assert refused.status is INVALID, path
                assert "not the expected message" in refused.message, path
    # The hand-over still works. A busy machine may have starved the link meanwhile.
    meet(decode)
    assert asked(decode, random_prompt(300, 0), b"").result().usage.prefilled_on == "prefill"
