"""Tests of video clips as lists of frames: pairs, times, sizes, refusals, golden answers."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tasuki.client.prompt import Clip, Prompt, SamplingOptions
from tasuki.model.vision.config import PictureTokens
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import ClipRules, PixelRules
from tasuki.server.errors import InvalidField, PictureTooLarge
from tasuki.server.pictures.clips import check_numbering, pair_times
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.pictures.part_reader import PictureReader
from tasuki.server.pictures.sent_picture import PictureLimits
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tests.harness.daemons import Node, flags
from tests.harness.http_calls import ANTHROPIC, Reply, ask
from tests.harness.picture_answers import (
    CASES,
    FOLDER,
    cached,
    chat,
    frame_files,
    messages_of,
    part_of,
)
from tests.harness.picture_files import data_url, picture_file
from tests.harness.picture_goldens import needs_goldens
from tests.harness.running_nodes import HTTP, running

IDS = PictureTokens(start=1, end=2, image=3, video=4)
RULES = PixelRules(16, 2, 2, 1024, 1 << 20, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CLIP = ClipRules(1024, 1 << 20, 2.0, 4, 768, None)
FRAME = data_url(picture_file(64, 96))


def reader(**limits: Any) -> PictureReader:
    return PictureReader(PictureLimits(**limits), fps=CLIP.fps)


def clip(*frames: object, **fields: object) -> dict[str, Any]:
    return {"type": "video", "video": [*frames], **fields}


@pytest.mark.parametrize(
    ("frames", "fps", "times"),
    [
        # A half is rounded as the processor does it.
        (5, 2.0, ["<0.2 seconds>", "<1.2 seconds>", "<2.0 seconds>"]),
        (1, 2.0, ["<0.0 seconds>"]),
        (4, 1.0, ["<0.5 seconds>", "<2.5 seconds>"]),
        (2, 30.0, ["<0.0 seconds>"]),
        (3, 0.1, ["<5.0 seconds>", "<20.0 seconds>"]),
    ],
)
def test_a_pair_has_the_mean_of_its_times(frames: int, fps: float, times: list[str]) -> None:
    assert pair_times(frames, fps) == times
    read = reader()
    assert read.clip(clip(*[FRAME] * frames, fps=fps), "a") == times
    assert len(read.pictures) == len(times)


def test_every_form_of_a_frame_is_read() -> None:
    read = reader()
    source = {"type": "base64", "media_type": "image/png", "data": FRAME.partition(",")[2]}
    forms = [
        FRAME,
        {"url": FRAME},
        {"type": "image_url", "image_url": {"url": FRAME}},
        {"type": "image", "image": FRAME},
        {"type": "image", "source": source},
        {"type": "input_image", "image_url": FRAME},
    ]
    read.clip(clip(*forms), "a")
    names = {frame.name for picture in read.pictures for frame in picture.frames}
    assert len(read.pictures) == 3 and len(names) == 1


def test_the_frames_of_one_url_are_read() -> None:
    """vLLM's form: JPEG files in one URL."""
    jpeg = data_url(picture_file(64, 96, "JPEG"), "image/jpeg")
    url = "data:video/jpeg;base64," + ",".join([jpeg.partition(",")[2]] * 3)
    one, other = reader(), reader()
    times = one.clip({"type": "video_url", "video_url": {"url": url}}, "a")
    assert times == other.clip(clip(jpeg, jpeg, jpeg), "a")
    assert [picture.name for picture in one.pictures] == [
        picture.name for picture in other.pictures
    ]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a file": (clip() | {"video": "file:///a.mp4"}, "a.video", "file of video"),
    "a file's URL": (
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
        "a.video_url",
        "file of video",
    ),
    "an address": (
        {"type": "video_url", "video_url": "https://example.org/a.mp4"},
        "a.video_url",
        "file of video",
    ),
    "nothing": ({"type": "video_url"}, "a.video_url", "must be a URL"),
    "no frames": (clip(), "a.video", "one at least"),
    "a number": (clip() | {"video": 3}, "a.video", "list of pictures"),
    "a frame of no kind": (clip(FRAME, 3), "a.video[1]", "must be a URL"),
    "a frame's address": (clip({"url": "file:///a"}), "a.video[0].url", "scheme"),
    "fps of nought": (clip(FRAME, fps=0), "a.fps", "frames a second"),
    "fps of text": (clip(FRAME, fps="2"), "a.fps", "frames a second"),
    "fps of a flag": (clip(FRAME, fps=True), "a.fps", "frames a second"),
    "fps of no number": (clip(FRAME, fps=float("nan")), "a.fps", "frames a second"),
    "a stored frame": (clip({"type": "input_image", "file_id": "f"}), "a.video[0].file_id", "file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_place(name: str) -> None:
    part, field, complaint = REFUSED[name]
    with pytest.raises(InvalidField, match=complaint) as refused:
        reader().clip(part, "a")
    assert refused.value.field == field


def test_frames_and_images_are_counted_apart() -> None:
    read = reader(most_frames=3, most_pictures=1)
    read.clip(clip(FRAME, FRAME), "a")
    read.chat_part({"image_url": FRAME}, "b")
    for ask_more in (
        lambda: read.clip(clip(FRAME, FRAME), "c"),
        lambda: read.chat_part({"image_url": FRAME}, "c"),
    ):
        with pytest.raises(PictureTooLarge):
            ask_more()
    url = "data:video/jpeg;base64," + "A," * 1000
    with pytest.raises(PictureTooLarge, match="3 frames"):
        reader(most_frames=3).clip({"type": "video_url", "video_url": url}, "a")
    # A stored turn's frames count too.
    with pytest.raises(PictureTooLarge):
        PictureReader(PictureLimits(most_frames=3), read.pictures, 2.0).clip(
            clip(FRAME, FRAME), "d"
        )


def placed(part: dict[str, Any], **limits: Any) -> RenderedPrompt:
    """Return the prompt of one clip, from a template with one placeholder for each picture."""
    pictures = NodePictures(IDS, RULES, PictureLimits(**limits), CLIP)
    read = pictures.reader()
    read.clip(part, "a")
    one = [9, IDS.start, IDS.image, IDS.end]
    rendered = RenderedPrompt(np.array(one * len(read.pictures), dtype=np.int32))
    return pictures.placed(rendered, read.pictures, b"", 1 << 20)


def test_pairs_have_video_placeholders_and_names_of_both_frames() -> None:
    other = data_url(picture_file(64, 96, "JPEG"))
    digests = [
        [picture.digest for picture in placed(clip(*frames)).pictures]
        for frames in ([FRAME], [FRAME, FRAME], [FRAME, other], [other, FRAME])
    ]
    # An odd last frame is doubled, so it is the pair of two equal ones.
    assert digests[0] == digests[1]
    assert len({one for (one,) in digests}) == 3
    rendered = placed(clip(FRAME, other))
    (picture,) = rendered.pictures
    assert (rendered.tokens == IDS.video).sum() == picture.rows * picture.columns
    assert IDS.image not in rendered.tokens
    assert picture.file is not None and picture.second is not None
    # An image of the same bytes has another name.
    image = NodePictures(IDS, RULES).reader()
    image.chat_part({"image_url": FRAME}, "a")
    one = RenderedPrompt(np.array([9, IDS.start, IDS.image, IDS.end], dtype=np.int32))
    alone = NodePictures(IDS, RULES).placed(one, image.pictures, b"", 1 << 20)
    assert alone.pictures[0].digest not in {one for (one,) in digests}


def test_a_longer_clip_begins_with_the_same_pictures() -> None:
    short, long = (placed(clip(*[FRAME] * count)) for count in (4, 6))
    assert [one.digest for one in long.pictures[:2]] == [one.digest for one in short.pictures]


@pytest.mark.parametrize("count", [2, 3])
def test_frames_of_two_sizes_are_refused(count: int) -> None:
    """Within a pair, and from one pair to the next."""
    frames = [FRAME] * (count - 1) + [data_url(picture_file(96, 64))]
    with pytest.raises(InvalidField, match="96 x 64 pixels, the frame before it 64 x 96"):
        placed(clip(*frames))


def test_the_size_is_bounded_by_the_clip_and_by_the_frame() -> None:
    frame = data_url(picture_file(640, 480))

    def tokens(frames: int, **limits: Any) -> int:
        (picture, *_) = placed(clip(*[frame] * frames), **limits).pictures
        return picture.rows * picture.columns

    assert tokens(2) == 15 * 20 > tokens(8) >= tokens(16) > 0
    assert tokens(2, shown_pixels=64 * 64) <= 4
    low = placed(clip(frame, frame, detail="low")).pictures[0]
    assert low.rows * low.columns <= 512 * 512 // 32**2


def test_too_many_pixels_and_bytes_are_refused() -> None:
    with pytest.raises(PictureTooLarge, match="above 20000 pixels"):
        placed(clip(*[FRAME] * 4), most_pixels=20_000)
    with pytest.raises(PictureTooLarge):
        reader(each=PictureBounds(most_bytes=10)).clip(clip(FRAME), "a")


def test_a_model_without_rules_for_videos_refuses_them() -> None:
    with pytest.raises(InvalidField, match="no video_preprocessor_config"):
        PictureReader(PictureLimits()).clip(clip(FRAME), "a")


def test_a_template_numbers_no_pairs() -> None:
    read = reader()
    read.clip(clip(FRAME), "a")
    with pytest.raises(InvalidField, match="add_vision_id"):
        check_numbering({"add_vision_id": True}, read.pictures)
    check_numbering({"add_vision_id": False}, read.pictures)
    check_numbering({"add_vision_id": True}, ())


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with running(Node("serve", *flags(FOLDER, arena_mib=16), *HTTP)) as found:
        yield found


def content_of(name: str) -> list[dict[str, Any]]:
    (only,) = CASES[name]["messages"]
    return [part_of(part) for part in only["content"]]


def message(node: Node, content: object, path: str = "/v1/messages") -> Reply:
    model = ask(node.http_address, "GET", "/v1/models").json["data"][0]["id"]
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 20,
        "temperature": 0,
    }
    return ask(node.http_address, "POST", path, body, ANTHROPIC)


@needs_goldens
def test_golden_answers_of_other_apis(node: Node) -> None:
    """Chats have their own test with all golden cases."""
    case = CASES["video"]
    golden = chat(node, messages_of(case), 20).json["choices"][0]
    assert golden["token_ids"] == case["greedy"]
    # The golden has no other picture, and texts have one form in chats and Messages.
    reply = message(node, content_of("video"))
    assert reply.json["content"][0]["text"] == golden["message"]["content"], reply.body
    assert reply.json["usage"]["input_tokens"] + reply.json["usage"][
        "cache_read_input_tokens"
    ] == len(case["prompt"])
    given = [
        {**part, "type": "input_text"} if part["type"] == "text" else part
        for part in content_of("video")
    ]
    body = {"input": [{"role": "user", "content": given}], "max_output_tokens": 20}
    response = ask(node.http_address, "POST", "/v1/responses", {**body, "temperature": 0})
    assert response.json["output"][-1]["content"][0]["text"] == golden["message"]["content"]
    follow_up = {
        "input": "and then?",
        "previous_response_id": response.json["id"],
        "max_output_tokens": 4,
    }
    stored = ask(node.http_address, "POST", "/v1/responses", follow_up)
    assert stored.json["usage"]["input_tokens_details"]["cached_tokens"] >= len(case["prompt"])


@needs_goldens
def test_golden_answer_of_grpc(node: Node) -> None:
    case = CASES["video"]
    (only,) = case["messages"]
    parts = [
        Clip([file.read_bytes() for file in frame_files(part["video"])])
        if part["type"] == "video"
        else part["text"]
        for part in only["content"]
    ]
    prompt = Prompt(messages=[{"role": "user", "parts": parts}])
    options: SamplingOptions = {"max_new_tokens": 20, "ignore_eos": True}
    answer = node.client.generate(prompt, cache_salt=b"clip", **options).result()
    assert [*answer.token_ids] == case["greedy"]
    assert answer.usage.prompt_tokens == len(case["prompt"])


@needs_goldens
def test_a_longer_clip_hits_its_beginning(node: Node) -> None:
    frames = [data_url(file.read_bytes()) for file in frame_files("clip")] * 4
    text = {"type": "text", "text": "w" * 40}
    short, long = (
        chat(
            node,
            [{"role": "user", "content": [text, clip(*frames[:count], fps=2)]}],
            4,
            cache_salt="long",
        )
        for count in (10, 16)
    )
    assert short.status == 200 and cached(short) == 0
    assert cached(long) >= 128


@needs_goldens
def test_refusals_over_http(node: Node) -> None:
    part = {"type": "video_url", "video_url": {"url": "https://example.org/a.mp4"}}
    reply = chat(node, [{"role": "user", "content": [part]}])
    assert reply.refusal == (400, "invalid")
    assert re.search(r"messages\[0\]\.content\[0\]\.video_url is a file", reply.error["message"])
    numbered = {"chat_template_kwargs": {"add_vision_id": True}}
    refused = chat(node, messages_of(CASES["video"]), **numbered)
    assert refused.refusal == (400, "invalid") and "add_vision_id" in refused.error["message"]
    document = message(node, [{"type": "document", "source": {}}])
    assert document.status == 400 and "files are not read" in document.error["message"]
