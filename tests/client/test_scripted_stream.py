"""The answers of known timing that benchmark tools are held against, as a client gets them."""

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest
from tokenizers import Tokenizer

from scripts.clients.benchmarks.scripted_server import scripted_server
from scripts.clients.benchmarks.scripted_stream import CHUNK_TOKENS, SCRIPTS
from scripts.clients.benchmarks.tools import TOOLS
from scripts.clients.install import version
from tasuki.model.named_checkpoints import embedded_model
from tests.repository.test_docs import ROOT

CHAT = {"stream": True, "messages": [{"role": "user", "content": "hello"}]}


@contextmanager
def posted(url: str, path: str, body: object) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=30)) as connection:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        yield connection.getresponse()


@pytest.mark.parametrize("name", SCRIPTS)
def test_its_tokens_are_those_of_the_embedded_tokenizer(name: str) -> None:
    tokenizer = Tokenizer.from_file(str(embedded_model() / "tokenizer.json"))
    script = SCRIPTS[name]

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    texts = [*script.thought, *script.answer]
    assert {tokens(text) for text in texts} == {CHUNK_TOKENS}
    assert tokens("".join(texts)) == script.text_tokens < script.written_tokens


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_chunk_comes_before_its_moment(name: str) -> None:
    script = SCRIPTS[name]
    arrived = []
    with scripted_server(script) as served:
        begun = time.monotonic()
        with posted(served.url, "/v1/chat/completions", CHAT) as reply:
            for line in reply:
                if line.strip():
                    text = line.decode().removeprefix("data: ").strip()
                    arrived.append(((time.monotonic() - begun) * 1000, text))
        assert served.requests == 1
    assert arrived.pop()[1] == "[DONE]"
    chunks = [*script.chunks()]
    assert len(arrived) == len(chunks)
    for (came, text), (moment, fields) in zip(arrived, chunks, strict=True):
        assert came >= moment and fields.items() <= json.loads(text).items()
    usages = [json.loads(text).get("usage") for _, text in arrived]
    assert any(usages) == script.with_usage


def test_what_is_not_there_is_refused_and_kept() -> None:
    with scripted_server(SCRIPTS["both"]) as served:
        for path, status in (("/v1/completions", 404), ("/v1/chat/completions", 400)):
            with posted(served.url, path, {}) as reply:
                assert reply.status == status
        assert served.unknown == ["POST /v1/completions"] and not served.requests


def test_the_document_is_of_the_versions_that_are_installed() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for tool in TOOLS:
        assert f"| {tool} {version(tool)} |" in text, tool
