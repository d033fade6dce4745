"""Tests of pictures in prompts: template, placeholders, expansion, moved marks.

Golden prompts of transformers' own processor are rendered from their messages and files.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Library

from tasuki.model.vision.config import PictureTokens, VisionConfig
from tasuki.model.vision.processor import PixelRules
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.pictures.expansion import PicturePrompt, expanded
from tasuki.server.pictures.picture_sizes import MeasuredPicture, PictureSizes
from tasuki.server.pictures.sent_picture import PictureLimits, SentPicture
from tasuki.server.text.chat_message import ChatMessage, ConversationBuilder
from tasuki.server.text.rendering.chat_template import ChatTemplate, RenderedPrompt
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.goldens import BESIDE
from tests.harness.grpc_fixtures import write_tokenizer
from tests.harness.picture_files import png_of
from tests.harness.picture_goldens import golden_cases, needs_goldens

TEMPLATES = Path(__file__).parents[1] / "harness" / "qwen_templates"
PUBLISHED = ("qwen3_5_think.jinja", "qwen3_5_nothink.jinja", "qwen3_6.jinja", "qwen3_8.jinja")
NAMES = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
IDS = PictureTokens(start=1, end=2, image=3, video=4)
RULES = PixelRules(16, 2, 2, 1024, 1 << 24, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
MOST = 4096


def measured(*tokens: tuple[int, int]) -> tuple[MeasuredPicture, ...]:
    """Return pictures of (rows, columns) tokens. Picture i is at messages[i]."""
    sent = [
        SentPicture(f"messages[{index}]", png_of(32 * columns, 32 * rows))
        for index, (rows, columns) in enumerate(tokens)
    ]
    found = PictureSizes(RULES, PictureLimits()).measured(b"", sent)
    assert [(one.grid.token_rows, one.grid.token_columns) for one in found] == [*tokens]
    return found


def rendered(*tokens: int, **fields: Any) -> RenderedPrompt:
    return RenderedPrompt(np.array(tokens, dtype=np.int32), **fields)


def places_of(prompt: PicturePrompt) -> list[tuple[int, int, int]]:
    return [(run.start, run.rows, run.columns) for run in prompt.layout.runs]


def test_a_placeholder_becomes_one_a_token() -> None:
    found = expanded(rendered(7, 1, 3, 2, 8), measured((2, 3)), IDS, MOST)
    assert found.rendered.tokens.tolist() == [7, 1, 3, 3, 3, 3, 3, 3, 2, 8]
    assert found.rendered.tokens.dtype == np.int32
    assert places_of(found) == [(2, 2, 3)] and found.picture_tokens == 6


def test_counts_behind_a_picture_move() -> None:
    """Each count of tokens counts the same rendered tokens as before."""
    given = rendered(
        *(7, 1, 3, 2, 8, 9, 1, 3, 2, 6),
        marks=(1, 2, 3, 4, 6, 10),
        changed=(5, 8),
        message_end=9,
    )
    found = expanded(given, measured((2, 3), (1, 4)), IDS, MOST)
    assert found.rendered.tokens.tolist() == [7, 1, *[3] * 6, 2, 8, 9, 1, *[3] * 4, 2, 6]
    assert places_of(found) == [(2, 2, 3), (12, 1, 4)]
    assert found.rendered.marks == (1, 2, 8, 9, 11, 18)
    assert found.rendered.changed == (10, 16) and found.rendered.message_end == 17
    assert found.rendered.thinking is given.thinking


def test_a_prompt_without_pictures_keeps_its_tokens() -> None:
    given = rendered(7, 8, 9, marks=(2, 3))
    found = expanded(given, (), IDS, MOST)
    assert found.rendered.tokens.tolist() == [7, 8, 9] and found.rendered.marks == (2, 3)
    assert not found.layout.runs


@pytest.mark.parametrize("shown", [0, 1])
def test_a_picture_that_is_not_shown_is_refused_by_its_place(shown: int) -> None:
    given = rendered(7, *[1, 3, 2] * shown, 8)
    with pytest.raises(InvalidField, match=f"shows {shown} of 2") as refused:
        expanded(given, measured((2, 2), (2, 2)), IDS, MOST)
    assert refused.value.field == f"messages[{shown}]"


@pytest.mark.parametrize(
    ("tokens", "complaint"),
    [
        ((1, 3, 2, 1, 3, 2), "shows 2 pictures of 1"),
        ((1, 3, 3, 2), "shows 2 pictures of 1"),
        ((7, 3, 2), "without token 1"),
        ((3, 2), "without token 1"),
        ((1, 3, 2, 1, 4, 2), "shows a video"),
    ],
)
def test_other_placeholders_of_a_template_are_refused(
    tokens: tuple[int, ...], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        expanded(rendered(*tokens), measured((1, 1)), IDS, MOST)


def test_a_prompt_beyond_the_context_is_refused_before_it_is_made() -> None:
    pictures = measured((8, 8))
    assert len(expanded(rendered(1, 3, 2), pictures, IDS, 66).rendered.tokens) == 66
    with pytest.raises(PromptTooLong, match="66 tokens, 64 of them of 1 pictures") as refused:
        expanded(rendered(1, 3, 2), pictures, IDS, 65)
    assert refused.value.field == "messages"


def test_content_is_cut_at_its_pictures() -> None:
    cut = ChatMessage("user", "abcd", pictures=(0, 2, 2, 4)).content_parts()
    assert cut == [None, "ab", None, None, "cd", None]
    assert ChatMessage("user", "", pictures=(0,)).content_parts() == [None]
    assert ChatMessage("user", "ab").content_parts() == ["ab"]


def test_a_reminder_joins_behind_a_message_with_pictures() -> None:
    builder = ConversationBuilder()
    builder.user("see this", (4,))
    builder.system("be short")
    builder.tool("", (0,))
    user, tool = builder.messages
    assert user.content.startswith("see this\n") and user.pictures == (4,)
    assert tool.content_parts() == [None]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.add_special_tokens([*NAMES])
    library.save(str(folder / "tokenizer.json"))
    loaded = Tokenizer.load(folder)
    assert loaded is not None
    return loaded


@pytest.fixture(params=PUBLISHED)
def published(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate((TEMPLATES / request.param).read_text(encoding="utf-8"), tokenizer, {})


CONVERSATION = (
    ChatMessage("system", "be short"),
    ChatMessage("user", f"see {NAMES[2]} and tell", pictures=(4,)),
    ChatMessage("assistant", "a square", reasoning=""),
    ChatMessage("user", "and these?", pictures=(0, 10)),
)


def test_published_templates_show_a_picture_at_its_place(
    published: ChatTemplate, tokenizer: Tokenizer
) -> None:
    prompt = published.prompt(CONVERSATION, open_answer=True)
    names = [tokenizer.added_tokens[name] for name in NAMES[:3]]
    start, end, image = names
    tokens = prompt.tokens.tolist()
    picture = [start, image, end]
    found = [at for at, token in enumerate(tokens) if token == image]
    assert len(found) == 3
    assert all(tokens[at - 1 : at + 2] == picture for at in found)
    # The client's own name of the placeholder stays text, right behind the first picture.
    named = tokenizer.encode(f"{NAMES[2]} and tell")
    assert tokens[found[0] + 2 : found[0] + 2 + len(named)] == named
    said = tokenizer.encode("and these?")
    assert tokens[found[1] + 2 : found[1] + 2 + len(said)] == said
    assert found[2] == found[1] + 3 + len(said)


def test_marks_and_caches_are_as_without_pictures(published: ChatTemplate) -> None:
    first = published.prompt(CONVERSATION, open_answer=True, salt=b"a")
    again = published.prompt(CONVERSATION, open_answer=True, salt=b"a")
    assert again.tokens.tolist() == first.tokens.tolist() and again.marks == first.marks
    plain = [ChatMessage(one.role, one.content, reasoning=one.reasoning) for one in CONVERSATION]
    assert len(published.prompt(plain, open_answer=True, salt=b"a").marks) == len(first.marks)
    moved = [*CONVERSATION[:3], ChatMessage("user", "and these?", pictures=(4, 10))]
    other = published.prompt(moved, open_answer=True, salt=b"a")
    assert other.tokens.tolist() != first.tokens.tolist()
    # All but the last message's end are the same places.
    assert other.marks[:-1] == first.marks[:-1]


def test_a_tool_s_result_may_be_a_picture(published: ChatTemplate, tokenizer: Tokenizer) -> None:
    messages = [
        ChatMessage("user", "look"),
        ChatMessage("assistant", "", reasoning=""),
        ChatMessage("tool", "", pictures=(0,)),
    ]
    tokens = published.prompt(messages, open_answer=True).tokens.tolist()
    assert tokens.count(tokenizer.added_tokens[NAMES[2]]) == 1


def of_golden(model: str, name: str) -> dict[str, Any]:
    cases = json.loads((BESIDE / model / "golden.json").read_text())["cases"]
    found: dict[str, Any] = next(case for case in cases if case["name"] == name)
    return found


def conversation_of(messages: Sequence[dict[str, Any]]) -> Iterator[tuple[ChatMessage, list[str]]]:
    """Yield each message and the files of its pictures."""
    for message in messages:
        if isinstance(message["content"], str):
            # The golden's template knows no thoughts.
            yield ChatMessage(message["role"], message["content"]), []
            continue
        text, places, files = "", [], []
        for part in message["content"]:
            if part["type"] == "image":
                places.append(len(text))
                files.append(part["image"])
            else:
                text += part["text"]
        yield ChatMessage(message["role"], text, pictures=tuple(places)), files


def chats_with_images() -> list[tuple[str, str]]:
    """Return (model, case) of goldens through a template, without clips."""
    if golden_cases() == [("none", "none")]:
        return golden_cases()
    return [
        (model, name)
        for model, name in golden_cases()
        if "raw_text" not in (case := of_golden(model, name))
        and all(item["kind"] == "image" for item in case["items"])
    ]


@needs_goldens
@pytest.mark.parametrize(("model", "name"), chats_with_images())
def test_golden_prompts_are_rendered_to_the_token(model: str, name: str) -> None:
    folder, case = BESIDE / model, of_golden(model, name)
    config, loaded = VisionConfig.load(folder), Tokenizer.load(folder)
    assert config is not None and loaded is not None
    template = ChatTemplate.load(folder, loaded)
    assert template is not None
    read = [*conversation_of(case["messages"])]
    messages = [message for message, _ in read]
    sent = [
        SentPicture(f"messages[{index}]", (folder / "images" / file).read_bytes())
        for index, (_, files) in enumerate(read)
        for file in files
    ]
    pictures = PictureSizes(PixelRules.load(folder, config), PictureLimits()).measured(b"", sent)
    prompt = expanded(template.prompt(messages, open_answer=True), pictures, config.tokens, MOST)
    assert prompt.rendered.tokens.tolist() == case["prompt"]
    wanted = [(run["start"], run["rows"], run["columns"]) for run in case["runs"]]
    assert places_of(prompt) == wanted
    assert prompt.layout.delta == case["position_delta"]
    sizes = [[one.size.height, one.size.width] for one in pictures]
    assert sizes == [item["size"] for item in case["items"]] or len(sizes) > len(case["items"])


def test_a_front_reads_pictures_without_torch() -> None:
    """A front worker holds no torch: it takes 200 MB and seconds."""
    program = (
        "import sys; import tasuki.server.pictures.part_reader; "
        "import tasuki.server.pictures.expansion; print('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout.strip() == "False", ran.stderr
