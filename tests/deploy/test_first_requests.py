"""Tests of the commands in README and the quick start, run unchanged except for ports and the
model's name. A newcomer's first commands must show the cache at work."""

import json
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tasuki.model.named_checkpoints import embedded_model
from tests.harness.daemons import Node, meet
from tests.harness.programs import output_of, program
from tests.harness.running_nodes import require_nixl, running

ROOT = Path(__file__).parents[2]
LEAST_CACHED = 200
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HTTP, FRONT, HAND_OVER = "127.0.0.1:8000", "127.0.0.1:7002", "127.0.0.1:7001"
CACHED = re.compile(r"\[(\d+) of (\d+) prompt tokens were cached\]")


@dataclass(frozen=True)
class Page:
    """A page of the documents. blocks: pairs of a fence's language and its text."""

    name: str

    @property
    def blocks(self) -> list[tuple[str, str]]:
        return BLOCK.findall((ROOT / self.name).read_text(encoding="utf-8"))

    def one(self, start: str, language: str = "") -> str:
        """Return the only block with this language and this start."""
        (found,) = [
            text for word, text in self.blocks if word == language and text.startswith(start)
        ]
        return found

    def command(self, start: str) -> list[str]:
        """Return the words of the only line with this start, without its comment."""
        lines = [line for _, text in self.blocks for line in text.splitlines()]
        (found,) = [line for line in lines if line.startswith(start)]
        return shlex.split(found, comments=True)


@dataclass(frozen=True)
class Started:
    page: Page
    decode: Node

    def asked(self, text: str) -> str:
        """Replace the text's addresses by those of the running daemons."""
        return text.replace(HTTP, self.decode.http_address).replace(FRONT, self.decode.address)


@pytest.fixture(scope="module", params=["README.md", "docs/quick-start.md"])
def started(request: pytest.FixtureRequest) -> Iterator[Started]:
    """Yield the pair started by the page's commands."""
    require_nixl()
    page = Page(request.param)
    with ExitStack() as stack:
        prefill = stack.enter_context(running(_node(page.command("tasuki prefill"))))
        decode = _node(page.command("tasuki decode"), prefill.address)
        stack.enter_context(running(decode))
        meet(decode)
        yield Started(page, decode)


def test_the_first_curl_shows_hundreds_of_cached_tokens_when_it_is_sent_again(
    started: Started,
) -> None:
    program("curl", "apt-get install curl")
    command = started.asked(started.page.one("curl http"))
    first, second = (
        json.loads(output_of(["bash", "-c", command], cwd=ROOT))["usage"] for _ in range(2)
    )
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens"] == first["prompt_tokens"]
    assert second["prompt_tokens_details"]["cached_tokens"] >= LEAST_CACHED


def test_readmes_program_shows_what_its_second_turn_had_cached(started: Started) -> None:
    if started.page.name != "README.md":
        assert not [text for _, text in started.page.blocks if "tasuki.client" in text]
        return
    snippet = started.asked(started.page.one("import json", "python"))
    said = output_of([sys.executable, "-c", snippet], cwd=ROOT)
    (_, first), (cached, second) = (map(int, counts) for counts in CACHED.findall(said))
    assert second > first and LEAST_CACHED <= cached < second
    assert len(said) > 80, "the answers themselves"


def test_pages_name_one_way_to_call_the_command() -> None:
    for name in ("README.md", "docs/quick-start.md"):
        for _, text in Page(name).blocks:
            assert ".venv/bin/tasuki" not in text and "pip install tasuki" not in text


def _node(words: list[str], prefill: str = HAND_OVER) -> Node:
    """Return the node of a page's command line, at free ports, with the embedded model."""
    command, *rest = words[1:]
    at = rest.index("--bind")
    del rest[at : at + 2]
    names = {
        "MODEL": str(embedded_model()),
        "model/embedded": str(embedded_model()),
        HTTP: "127.0.0.1:0",
        HAND_OVER: prefill,
    }
    return Node(command, *(names.get(word, word) for word in rest))
