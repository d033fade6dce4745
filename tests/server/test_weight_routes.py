"""Updates of weights by HTTP, as trainers send them: a node answers as one started with the new
folder, and every client of a pause is answered."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.server.openai.weight_routes import PATHS
from tests.harness.api_keys import headers, keys_file
from tests.harness.daemons import Node, embedded_model, flags, fleet
from tests.harness.http_calls import ask
from tests.harness.running_nodes import HTTP
from tests.harness.versions import SMALL, version

PROMPT = list(range(1, 101))


@pytest.fixture(params=[SMALL, embedded_model()], ids=["small-moe", "embedded"])
def folders(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    first, second = (version(tmp_path / str(n), n, request.param) for n in (1, 2))
    return first, second


@pytest.fixture
def start() -> Iterator[Any]:
    with fleet() as launch:
        yield lambda model, *more: launch("serve", *flags(model), *HTTP, *more)


def post(node: Node, path: str, key: str = "", **body: Any) -> tuple[int, Any]:
    reply = ask(node.http_address, "POST", path, body, headers(key) if key else None)
    return reply.status, reply.json


def complete(node: Node, count: int = 6) -> dict[str, Any]:
    status, body = post(
        node,
        "/v1/completions",
        prompt=PROMPT,
        max_tokens=count,
        temperature=0,
        return_token_ids=True,
        ignore_eos=True,
    )
    assert status == 200, body
    found: dict[str, Any] = body
    return found


def ids(body: dict[str, Any]) -> list[int]:
    found: list[int] = body["choices"][0]["token_ids"]
    return found


def cached(body: dict[str, Any]) -> int:
    return int(body["usage"]["prompt_tokens_details"]["cached_tokens"])


APART = ("--engine-process", "process", "--front-workers", "2")


@pytest.mark.parametrize("more", [(), pytest.param(APART, marks=pytest.mark.slow)])
def test_a_node_answers_as_one_started_with_the_new_folder(
    start: Any, folders: tuple[Path, Path], more: tuple[str, ...]
) -> None:
    first, second = folders
    node, fresh = start(first, *more), start(second)
    before = complete(node)
    assert "metadata" not in before and cached(complete(node)) > 0
    status, said = post(node, PATHS[0], model_path=str(second), weight_version="step-2")
    assert status == 200 and said["success"] and said["weight_version"] == "step-2"
    after, expected = complete(node), complete(fresh)
    assert ids(after) == ids(expected) != ids(before)
    assert cached(after) == 0
    assert after["metadata"]["weight_version"] == "step-2"
    again = complete(node)
    assert ids(again) == ids(expected) and cached(again) > 0
    status, said = post(node, PATHS[0], model_path=str(second / "config.json"))
    assert status == 400 and not said["success"] and said["weight_version"] == "step-2"
    assert ids(complete(node)) == ids(expected)


def test_a_pause_answers_all_it_aborts_and_keeps_what_comes_later(
    start: Any, tmp_path: Path
) -> None:
    node = start(version(tmp_path / "1", 1))
    ended: list[tuple[int, Any]] = []

    def long() -> None:
        ended.append(post(node, "/v1/completions", prompt=PROMPT, max_tokens=3000, ignore_eos=True))

    running = threading.Thread(target=long)
    running.start()
    while not node.requests("Decoding"):
        assert running.is_alive()
    assert post(node, "/pause_generation", mode="abort")[0] == 200
    running.join(30.0)
    assert not running.is_alive() and len(ended) == 1
    later = threading.Thread(target=complete, args=(node,))
    later.start()
    later.join(0.3)
    assert later.is_alive(), "a pause let a request run"
    assert post(node, "/resume")[0] == 200
    later.join(30.0)
    assert not later.is_alive()
    node.assert_at_rest()


def test_only_keys_of_the_scope_weights_may_update(start: Any, tmp_path: Path) -> None:
    keys = {"trainer": "weights", "chat": "caller", "boss": "operator"}
    lines = "".join(f"{name} key-of-{name} {scope}\n" for name, scope in keys.items())
    node = start(version(tmp_path / "1", 1), "--api-keys", keys_file(tmp_path, lines))
    for path in PATHS:
        for name in ("chat", "boss"):
            status, body = post(node, path, key=f"key-of-{name}")
            assert status == 403 and "weights" in body["error"]["message"]
    status, body = post(node, PATHS[0], key="key-of-trainer")
    assert status == 400 and body["error"]["param"] == "model_path"
