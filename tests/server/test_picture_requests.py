"""Tests of addresses in requests over HTTP: a real front, a real fetching process, a local server.

Their prompts equal those of the same pictures sent as `data:` URLs.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.processor import ClipRules, PixelRules
from tasuki.server.openai.generation import ServedModel
from tasuki.server.pictures.fetching.addresses import FetchHosts
from tasuki.server.pictures.fetching.fetcher import FetchBounds, PictureFetcher
from tasuki.server.pictures.fetching.request_addresses import MOST_FETCHED_BYTES
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.text.text_codec import TextCodec
from tests.harness.fetch_stand_ins import LOCAL
from tests.harness.http_calls import ANTHROPIC
from tests.harness.http_fixtures import HttpFront, running_http
from tests.harness.picture_answers import FOLDER
from tests.harness.picture_files import data_url, picture_file
from tests.harness.picture_goldens import needs_goldens
from tests.harness.picture_server import PictureServer, serving_pictures
from tests.harness.waiting import until

pytestmark = needs_goldens

FILE = picture_file(64, 96)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PictureServer]:
    folder = tmp_path_factory.mktemp("pictures")
    with pytest.MonkeyPatch.context() as patched, serving_pictures(folder) as found:
        patched.setenv("HOME", str(folder))
        yield found


@pytest.fixture(scope="module")
def model(server: PictureServer) -> Iterator[ServedModel]:
    config = VisionConfig.load(FOLDER)
    assert config is not None and Path(os.environ["HOME"]).is_dir()
    codec = TextCodec.load(FOLDER, 320, 4096)
    clip = ClipRules.load(FOLDER, config)
    pictures = NodePictures(config.tokens, PixelRules.load(FOLDER, config), clip=clip)
    fetcher = PictureFetcher(FetchHosts.of(["test"]), FetchBounds(seconds=3.0), LOCAL)
    yield ServedModel("tiny", 1, 4096, codec, pictures=pictures, fetcher=fetcher)
    fetcher.close()


@pytest.fixture(scope="module")
def front(model: ServedModel) -> Iterator[HttpFront]:
    with running_http(model.codec, model=model) as http:
        yield http


def chat(*urls: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, *parts]}]}


def test_an_address_gives_the_prompt_of_its_content(
    front: HttpFront, server: PictureServer
) -> None:
    before = len(server.asked)
    url = server.url("a.png")
    bodies = [chat(each, each) for each in (url, data_url(FILE))]
    found, wanted = (front.post("/tokenize", body) for body in bodies)
    assert found.status == 200, found.body
    assert found.json["tokens"] == wanted.json["tokens"]
    # One address is fetched once, though it is shown twice.
    assert server.asked[before:] == ["/a.png"]
    answers = [front.post("/v1/chat/completions", {**body, "max_tokens": 1}) for body in bodies]
    assert [each.status for each in answers] == [200, 200], answers[0].body
    of_address, of_data = front.engine.of(m.Submit)[-2:]
    assert [one.digest for one in of_address.pictures] == [one.digest for one in of_data.pictures]
    file = of_address.pictures[0].file
    assert file is not None and file.content() == FILE


def test_other_apis_fetch_too(front: HttpFront, server: PictureServer) -> None:
    url = server.url("a.png")
    block = {"type": "image", "source": {"type": "url", "url": url}}
    messages = {"model": "tiny", "messages": [{"role": "user", "content": [block]}]}
    counted = front.post("/v1/messages/count_tokens", messages, ANTHROPIC)
    assert counted.status == 200, counted.body
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    body = {"input": [item], "max_output_tokens": 1, "store": False}
    response = front.post("/v1/responses", body)
    assert response.status == 200, response.body
    assert response.json["usage"]["input_tokens"] == counted.json["input_tokens"]
    frames = {"type": "video", "video": [url, url, url]}
    clip = front.post("/tokenize", {"messages": [{"role": "user", "content": [frames]}]})
    assert clip.status == 200, clip.body


REFUSED = {
    "redirect": (400, "picture_not_fetched", "no redirect is followed"),
    "missing": (400, "picture_not_fetched", "status 404"),
    "silent": (400, "picture_not_fetched", "did not come within"),
    "words": (400, "invalid", "no known picture"),
}


@pytest.mark.parametrize("path", REFUSED)
def test_refusals_name_the_place(front: HttpFront, server: PictureServer, path: str) -> None:
    status, kind, reason = REFUSED[path]
    reply = front.post("/tokenize", chat(server.url("a.png"), server.url(path)))
    assert reply.refusal == (status, kind), reply.body
    assert "messages[0].content[2]" in reply.error["message"]
    assert reason in reply.error["message"]


@pytest.mark.parametrize("kind", ["loopback", "metadata", "mapped", "killed"])
def test_local_addresses_and_a_killed_process_are_refused(
    front: HttpFront, server: PictureServer, kind: str
) -> None:
    before = len(server.asked)
    reply = front.post("/tokenize", chat(server.url("a.png", kind)))
    assert reply.refusal == (400, "picture_not_fetched"), reply.body
    assert len(server.asked) == before
    assert front.post("/tokenize", chat(server.url("a.png"))).status == 200


def test_all_addresses_of_a_request_are_bounded_together(
    front: HttpFront, server: PictureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasuki.server.pictures.fetching import request_addresses

    assert MOST_FETCHED_BYTES == 64 << 20
    monkeypatch.setattr(request_addresses, "MOST_FETCHED_BYTES", (1 << 20) + 1)
    urls = [f"{server.url('long')}?{number}" for number in range(3)]
    reply = front.post("/tokenize", chat(*urls))
    assert reply.refusal == (413, "picture_too_large"), reply.body
    monkeypatch.setattr(request_addresses, "MOST_SECONDS", 0.2)
    late = front.post("/tokenize", chat(server.url("silent")))
    assert late.refusal == (400, "picture_not_fetched") and "0.2 s" in late.error["message"]


def test_no_bytes_are_held_behind_a_request(
    front: HttpFront, server: PictureServer, model: ServedModel
) -> None:
    front.post("/tokenize", chat(server.url("a.png"), server.url("missing")))
    until(lambda: not model.held.total, lambda: f"{model.held.total} bytes are held")
    fetcher = model.fetcher
    assert fetcher is not None
    until(lambda: not fetcher._waiting, lambda: f"{fetcher._waiting} wait")
