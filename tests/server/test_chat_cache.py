"""Tests of remembered conversations. The memory changes no token and no mark, keeps its bound, and
is not shared with other salts."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import jinja2
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError, ToolCall
from tasuki.server.text.rendering.chat_cache import EncodedPieces
from tasuki.server.text.rendering.chat_template import ChatTemplate, RenderedPrompt
from tasuki.server.text.rendering.compiled_template import CompiledTemplate
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer, TooManyTokens
from tasuki.utils.bounded_cache import ENTRY_BYTES, BoundedCache
from tests.harness.agent_chat import AGENT_TEMPLATE, agent_messages, agent_tools
from tests.harness.api_keys import headers, keys_file, metadata
from tests.harness.grpc_calls import GrpcCalls
from tests.harness.grpc_fixtures import write_tokenizer
from tests.harness.http_fixtures import HttpFront, running_http
from tests.server.chat_templates import BOS, TEMPLATES, new_template, rendered_part_by_part

SOURCE = Path(jinja2.__file__).with_name("filters.py").read_text(encoding="utf-8")

# Names cut apart, whole names, our own marks, and letters that join their neighbours.
ODD = [
    *(
        "<|im_",
        "end|>",
        "<|im_end|>",
        "<|im_start|>",
        "|>\n<|",
        "\ue000",
        "\ue001",
        "\ue0000\ue001",
    ),
    *(
        "\n",
        " ",
        "\u0301",
        "\u200d",
        "👩‍🚀",
        "漢",
        "é",
        "it",
        " was",
        "</think>",
        "<think>",
        "\r\n",
    ),
]
TEXTS = st.lists(st.sampled_from(ODD), max_size=6).map("".join)


@pytest.fixture(scope="module")
def tokenizer(codec: TextCodec) -> Tokenizer:
    return codec.require_tokenizer()


def agent_template(tokenizer: Tokenizer, **bounds: int) -> ChatTemplate:
    return new_template(AGENT_TEMPLATE, tokenizer, **bounds)


def values(rendered: RenderedPrompt) -> tuple[list[int], tuple[int, ...]]:
    return rendered.tokens.tolist(), rendered.marks


def outcome(render: Callable[..., Any], *given: Any, **asked: Any) -> Any:
    try:
        rendered = render(*given, **asked)
        return values(rendered) if isinstance(rendered, RenderedPrompt) else rendered
    except ChatTemplateError as error:
        return str(error)


@dataclass
class Conversation:
    """A conversation with a client's kinds of change. drawn: source of the random choices."""

    drawn: random.Random
    messages: list[ChatMessage] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    salt: bytes = b""
    kept: list[list[ChatMessage]] = field(default_factory=list)

    def change(self) -> None:
        changes = [self.ask, self.ask, self.answer, self.answer, self.call, self.call, self.edit]
        self.drawn.choice([*changes, self.cut, self.fork, self.retool, self.resalt])()

    def text(self) -> str:
        return "".join(self.drawn.choices(ODD, k=self.drawn.randrange(6)))

    def ask(self) -> None:
        self.messages.append(ChatMessage("user", self.text()))

    def answer(self) -> None:
        self.messages.append(ChatMessage("assistant", self.text()))

    def call(self) -> None:
        calls = tuple(
            ToolCall("look", {"at": self.text()}) for _ in range(self.drawn.randint(1, 2))
        )
        self.messages.append(ChatMessage("assistant", f"<think>\n{self.text()}\n</think>\n", calls))
        self.messages += [ChatMessage("tool", self.text()) for _ in calls]

    def edit(self) -> None:
        if self.messages:
            place = self.drawn.randrange(len(self.messages))
            self.messages[place] = ChatMessage(self.messages[place].role, self.text())

    def cut(self) -> None:
        del self.messages[self.drawn.randrange(len(self.messages)) + 1 :]

    def fork(self) -> None:
        self.kept.append(list(self.messages))
        self.messages = list(self.drawn.choice(self.kept))

    def retool(self) -> None:
        self.tools = agent_tools(self.drawn.randrange(3))

    def resalt(self) -> None:
        self.salt = self.drawn.choice([b"", b"ann", b"ben"])


# --- Equal to a rendering without memory


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_conversation_that_changes_is_rendered_as_if_it_were_new(
    tokenizer: Tokenizer, name: str, seed: int
) -> None:
    remembering = new_template(TEMPLATES[name], tokenizer)
    told = Conversation(random.Random(seed))
    told.ask()
    for _ in range(10):
        told.change()
        open_answer = told.drawn.random() < 0.8
        asked: dict[str, Any] = {"open_answer": open_answer, "tools": told.tools}
        once = outcome(remembering.prompt, told.messages, salt=told.salt, **asked)
        naive = outcome(rendered_part_by_part, TEMPLATES[name], tokenizer, told.messages, **asked)
        assert once == naive


@pytest.mark.parametrize("name", ["chatml", "thinking", "agent", "last is special", "reordering"])
def test_a_long_conversation_is_rendered_as_if_it_were_new(tokenizer: Tokenizer, name: str) -> None:
    remembering = new_template(TEMPLATES[name], tokenizer)
    told = Conversation(random.Random(7))
    told.messages = agent_messages(70, SOURCE, 0.05)
    for _ in range(12):
        told.change()
        new = new_template(TEMPLATES[name], tokenizer, cache_bytes=0)
        asked: dict[str, Any] = {"open_answer": True, "tools": told.tools}
        grown = outcome(remembering.prompt, told.messages, salt=told.salt, **asked)
        assert grown == outcome(new.prompt, told.messages, **asked)


PLAIN = st.text(st.characters(exclude_categories=["Cs", "Co"]), max_size=40)


@settings(max_examples=40, deadline=None)
@given(contents=st.lists(PLAIN | TEXTS.filter(lambda t: "\ue000" not in t), min_size=1, max_size=5))
def test_pieces_between_special_tokens_are_encoded_as_in_the_whole(
    whole: tuple[Tokenizer, tokenizers.Tokenizer], contents: list[str]
) -> None:
    """Compare with the library itself: it gets all of a text at once and finds special tokens in
    it."""
    tokenizer, library = whole
    names = sorted(tokenizer.added_tokens, key=len, reverse=True)
    for name in names:
        contents = [content.replace(name, "") for content in contents]
    if any(name in content for name in names for content in contents):
        return
    messages = [ChatMessage("user", content) for content in contents]
    template = new_template(TEMPLATES["chatml"], tokenizer)
    for count in range(1, len(messages) + 1):
        shown = [{"role": "user", "content": item.content} for item in messages[:count]]
        text = CompiledTemplate(TEMPLATES["chatml"], BOS).text(shown, True)
        encoded = library.encode(text, add_special_tokens=False).ids
        assert template.prompt(messages[:count], open_answer=True).tokens.tolist() == encoded


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    folder = tmp_path_factory.mktemp("whole")
    write_tokenizer(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    return tokenizer, tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_threads_that_share_a_template_render_what_each_would_alone(tokenizer: Tokenizer) -> None:
    messages = agent_messages(90, SOURCE, 0.05)
    lengths = range(30, 90, 6)
    alone = {
        count: values(agent_template(tokenizer).prompt(messages[:count], open_answer=True))
        for count in lengths
    }
    shared = agent_template(tokenizer, cache_bytes=40_000)
    wrong: list[int] = []

    def render(seed: int) -> None:
        for count in random.Random(seed).sample(lengths, len(lengths)):
            if values(shared.prompt(messages[:count], open_answer=True)) != alone[count]:
                wrong.append(count)

    threads = [threading.Thread(target=render, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- The cost of a next turn


def test_a_next_turn_encodes_what_is_new_and_renders_once(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[int] = []
    run = CompiledTemplate._run

    def counted(self: CompiledTemplate, template: Any, messages: list[Any], *rest: Any) -> str:
        rendered.append(len(messages))
        return run(self, template, messages, *rest)

    template = agent_template(tokenizer)
    messages = agent_messages(402, SOURCE, 0.1)
    prompts = {}
    for count in (398, 400):
        prompts[count] = template.prompt(messages[:count], open_answer=True, tools=agent_tools())
    encoded, remembered = template.pieces.encoded, template.pieces.remembered
    monkeypatch.setattr(CompiledTemplate, "_run", counted)
    last = template.prompt(messages, open_answer=True, tools=agent_tools())
    new = len(last.tokens) - len(prompts[400].tokens)
    assert template.pieces.encoded - encoded <= new
    assert template.pieces.remembered - remembered > 0.5 * len(last.tokens)
    assert rendered == [402]


def test_a_next_turn_takes_a_fraction_of_the_first_ones_processor_time(
    tokenizer: Tokenizer,
) -> None:
    messages = agent_messages(404, SOURCE, 0.3)

    def seconds(template: ChatTemplate, count: int) -> float:
        begun = time.thread_time()
        template.prompt(messages[:count], open_answer=True, tools=agent_tools())
        return time.thread_time() - begun

    first, following = [], []
    for _ in range(3):
        template = agent_template(tokenizer)
        first.append(seconds(template, 402))
        following.append(seconds(template, 404))
    assert 2 * min(following) < min(first)


def test_marks_do_not_depend_on_what_is_remembered_where_few_parts_may_be_rendered(
    tokenizer: Tokenizer,
) -> None:
    messages = agent_messages(402, SOURCE, 0.02)
    remembering = agent_template(tokenizer)
    for count in range(380, 402, 3):
        remembering.prompt(messages[:count], open_answer=True)
    grown = remembering.prompt(messages, open_answer=True)
    assert values(grown) == values(agent_template(tokenizer).prompt(messages, open_answer=True))
    assert grown.marks


# --- Owner and size of the memory


def test_nobody_profits_from_another_salts_conversation(tokenizer: Tokenizer) -> None:
    template = agent_template(tokenizer)
    messages = agent_messages(40, SOURCE, 0.1)
    asked: dict[str, Any] = {"open_answer": True, "tools": agent_tools()}
    runs: list[tuple[int, int]] = []
    for salt in (b"ann", b"ben", b"ann"):
        before = template.pieces.encoded, len(template._parts)
        template.prompt(messages, salt=salt, **asked)
        runs.append((template.pieces.encoded - before[0], len(template._parts) - before[1]))
    assert runs[0] == runs[1] and all(runs[0])
    assert runs[2] == (0, 0)


@pytest.mark.parametrize("surface", ["chat", "tokenize", "generate", "session"])
def test_each_tenant_s_text_is_encoded_anew(codec: TextCodec, tmp_path: Path, surface: str) -> None:
    pieces = codec.require_template().pieces
    keys = ServerConfig(api_keys=keys_file(tmp_path, "ann ann-key\nben ben-key\n"))
    content = f"it was {surface} " * 20
    item = pb.Message(role="user", content=content)

    def ask(http: HttpFront, channel: grpc.Channel, key: str, salt: str) -> None:
        calls = GrpcCalls(channel, metadata(key))
        body = {"messages": [{"role": "user", "content": content}], "cache_salt": salt}
        if surface == "chat":
            assert http.post("/v1/chat/completions", body, headers(key)).status == 200
        elif surface == "tokenize":
            assert http.post("/tokenize", body, headers(key)).status == 200
        elif surface == "generate":
            messages = pb.Messages(items=[item])
            assert list(calls.generate(messages=messages, cache_salt=salt.encode()))
        else:
            calls.say(calls.open(salt.encode()), ("user", content))

    with (
        running_http(codec, keys) as http,
        grpc.insecure_channel(http.front.address) as channel,
    ):
        encoded = []
        for key, salt in [("ann", ""), ("ben", ""), ("ann", "x"), ("ann", ""), ("ben", "")]:
            before = pieces.encoded
            ask(http, channel, f"{key}-key", salt)
            encoded.append(pieces.encoded - before)
    assert all(encoded[:3]) and encoded[3:] == [0, 0]


def test_no_more_is_held_than_may_be(tokenizer: Tokenizer) -> None:
    capacity = 100_000
    template = agent_template(tokenizer, cache_bytes=capacity)
    for seed in range(6):
        messages = agent_messages(60, SOURCE, 0.3, seed)
        rendered = template.prompt(messages, open_answer=True)
        assert 0 < template.pieces.used <= capacity
        assert values(rendered) == values(
            agent_template(tokenizer).prompt(messages, open_answer=True)
        )


def test_a_prompt_that_is_too_long_is_refused_and_not_remembered(tokenizer: Tokenizer) -> None:
    pieces = EncodedPieces(tokenizer, 1 << 20)
    texts = [f"so it was {number}" for number in range(50)]
    tokens = sum(len(tokenizer.encode(text)) for text in texts)
    with pytest.raises(TooManyTokens):
        pieces.tokens(b"", texts, tokens - 1)
    assert pieces.used == 0
    assert sum(map(len, pieces.tokens(b"", texts, tokens).values())) == tokens
    # Each text counts, though one encoding serves all.
    with pytest.raises(TooManyTokens):
        pieces.tokens(b"", [*texts, texts[0]], tokens)


def test_one_long_piece_does_not_drive_out_the_rest(tokenizer: Tokenizer) -> None:
    pieces = EncodedPieces(tokenizer, 1 << 20)
    pieces.tokens(b"", ["it was"], None)
    used = pieces.used
    pieces.tokens(b"", ["so it was " * 10_000], None)
    assert pieces.used == used


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 900)), max_size=60))
def test_a_bounded_cache_keeps_what_was_asked_for_last(steps: list[tuple[int, int]]) -> None:
    """Compare with a naive reference: a list with the latest entry last."""
    capacity = 5 * ENTRY_BYTES
    cache: BoundedCache[int, int] = BoundedCache(capacity)
    held: list[tuple[int, int]] = []
    for key, size in steps:
        known = [item for item in held if item[0] == key]
        assert cache.get(key) == (known[0][1] if known else None)
        held = [item for item in held if item[0] != key] + known
        if size % 3 and size + ENTRY_BYTES <= capacity:
            cache.put(key, size, size)
            held = [item for item in held if item[0] != key] + [(key, size)]
        while sum(size + ENTRY_BYTES for _, size in held) > capacity:
            held.pop(0)
        assert cache.used == sum(size + ENTRY_BYTES for _, size in held)
        assert len(cache) == len(held)


# --- The sandbox's short cuts


@pytest.fixture
def sandboxes() -> Iterator[tuple[jinja2.Environment, jinja2.Environment]]:
    ours = CompiledTemplate("", {})._plain.environment
    base = type(ours).__mro__[1](trim_blocks=True, lstrip_blocks=True)
    yield ours, base


@pytest.mark.parametrize(
    "expression",
    [
        *("m.role", "m.nothing", "m.items", "m.clear", "m.pop", "m.update", "m.__class__", "m.get"),
        *("s.upper", "s.format", "s.format_map", "s.__class__", "s.nothing", "s.startswith"),
        *("n.x", "n.nothing", "n.__class__", "n._Namespace__attrs"),
        *(
            "s.upper()",
            "s.split('a')[0]",
            "'{0.__class__}'.format(s)",
            "s.replace(old='a', new='b')",
        ),
        *("s.encode().__class__", "m.items() | list", "m.keys.__self__", "s.join(['x', 'y'])"),
    ],
)
def test_a_template_may_do_what_the_library_s_sandbox_lets_it(
    sandboxes: tuple[jinja2.Environment, jinja2.Environment], expression: str
) -> None:
    source = (
        "{% set n = namespace(x=1) %}{% for m in all %}{% set s = m.content %}"
        f"{{{{ {expression} }}}}{{{{ loop.index0 }}}}{{{{ loop.nothing }}}}{{% endfor %}}"
    )
    said = []
    for sandbox in sandboxes:
        try:
            shown = sandbox.from_string(source).render(all=[{"role": "user", "content": "a bat"}])
        except (jinja2.TemplateError, TypeError) as error:
            shown = f"{type(error).__name__}: {error}"
        said.append(shown.partition(" at 0x")[0])
    assert said[0] == said[1]
