"""An API server over a scripted engine with an agent's chat template: prompts open thoughts, and
answers write tool calls."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

from tasuki.engine import messages as m
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.config import ServerConfig
from tasuki.server.openai.generation import ServedModel
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.stop_strings import StopPlace
from tasuki.server.text.text_codec import TextCodec
from tests.harness.agent_chat import AGENT_TEMPLATE
from tests.harness.grpc_fixtures import THINKING_TAGS
from tests.harness.http_fixtures import HttpFront, running_http

END = 2
"""Id of the token <|im_end|>, ending an answer."""

THOUGHT = "it was so\n</think>\n\n"
CALL = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nBath\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>"
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}


@dataclass
class AgentFront:
    """An HTTP server over a scripted engine. held: memory held by its requests."""

    http: HttpFront
    codec: TextCodec
    held: HeldBytes = field(default_factory=HeldBytes)

    def say(self, *answers: str) -> None:
        """Set the engine's next answers as texts, in order. The last one is repeated without
        end."""
        left = list(answers)

        def answer(submit: m.Submit) -> list[int]:
            text = left.pop(0) if len(left) > 1 else left[0]
            return [*self._sampled(text), END]

        self.http.engine.answer = answer

    def _sampled(self, text: str) -> list[int]:
        """Return the tokens of a text as a model would sample them: each thinking tag is one
        token."""
        tokenizer = self.codec.require_tokenizer()
        segments = re.split("(" + "|".join(map(re.escape, THINKING_TAGS)) + ")", text)
        added = {tag: [tokenizer.added_tokens[tag]] for tag in THINKING_TAGS}
        return [
            id_ for segment in segments for id_ in added.get(segment) or tokenizer.encode(segment)
        ]

    def end_by_length(self) -> None:
        """Let each answer finish with the reason "length" from now on."""
        engine = self.http.engine
        finish = engine._finish
        engine._finish = lambda submit, _, tokens: finish(submit, m.FinishReason.LENGTH, tokens)

    def turn(self) -> list[int]:
        """Return the tokens of the last request's prompt and answer."""
        submit = self.submits()[-1]
        return [*submit.prompt.tolist(), *self.http.engine.answer(submit)]

    def submits(self) -> list[m.Submit]:
        return self.http.engine.of(m.Submit)

    def text(self, tokens: object) -> str:
        """Return the text of the tokens, with special tokens by name."""
        ids = [int(token) for token in tokens]  # type: ignore[attr-defined]
        found: str = self.http.post("/detokenize", {"tokens": ids}).json["prompt"]
        return found

    @property
    def prompt(self) -> str:
        """Return the text of the last request's prompt."""
        return self.text(self.submits()[-1].prompt)


@cache
def agent_codec(codec: TextCodec, source: str = AGENT_TEMPLATE) -> TextCodec:
    """Return a codec with the template `source`, the same one for all servers, because analysing a
    template takes a while."""
    template = ChatTemplate(source, codec.require_tokenizer(), {})
    return replace(codec, template=template, max_tokens=1 << 16)


@contextmanager
def running_agent_front(
    codec: TextCodec,
    config: ServerConfig | None = None,
    max_tokens: int = 1 << 15,
    source: str = AGENT_TEMPLATE,
) -> Iterator[AgentFront]:
    """Yield a running AgentFront. codec: tokenizer; its template is replaced by `source`.
    max_tokens: largest number of tokens of a prompt with its answer."""
    served = agent_codec(codec, source)
    config = config or ServerConfig()
    model = ServedModel(
        *("tiny", 1_700_000_000, max_tokens, served),
        hides_unasked_thinking=config.messages_thinking == "asked",
        aliases=("other",),
        stop_place=StopPlace(config.stop_strings),
        whole_calls=config.whole_calls,
        held=HeldBytes.for_messages(config.access.max_message_bytes),
    )
    with running_http(served, config, model=model) as http:
        front = AgentFront(http, served, model.held)
        front.say("fine")
        yield front
