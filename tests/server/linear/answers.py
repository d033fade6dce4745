"""Entries for text written by a model: every reader of an answer, fed one token a push."""

from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.anthropic.conversation import ThinkingChoice
from tasuki.server.anthropic.message_writer import MessageHead, MessageWriter
from tasuki.server.grpc.generate_messages import write_tokens
from tasuki.server.http.reply import AnswerWriter
from tasuki.server.openai.chat import ChatReply
from tasuki.server.openai.completions import CompletionReply, ShownFields
from tasuki.server.openai.reply import ChunkedReply, ReplyHead, ReplyShape
from tasuki.server.openai.token_details import ScoredPrompt, TokenIds, TokenNames, prompt_ids
from tasuki.server.responses.endpoints.compaction import CompactionWriter
from tasuki.server.responses.output_items import MessageLogprobs
from tasuki.server.responses.response_writer import ResponseHead, ResponseWriter
from tasuki.server.responses.stored_responses import TurnRecord
from tasuki.server.responses.tools import ResponseTools, ToolName
from tasuki.server.text.grammars.call_grammar import ToolChoice
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.stop_strings import StopRule, StopStrings
from tasuki.server.text.text_answer import Ending, Piece, Thinking
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart
from tests.harness.answer_pieces import BY_ITSELF
from tests.harness.grpc_fixtures import usage

from .entries import Answer, Entry, Reader, Whole, some, tokens_of
from .shapes import TEXTS, repeated

_ID = m.RequestId("a")
_TOKEN = m.TokenOut(_ID, 5, -0.5, 1.5, 0)
_ENDING = Ending(m.FinishReason.STOP, 1, usage(5, 1))
_NO_TOKENS = np.zeros(0, dtype=np.int32)
_NAMES = TokenNames(None)
_PARSING = "server/text/parsing"
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"properties": {"a": {"type": "string"}, "b": {"type": "array"}}},
        },
    }
]

# One or two shapes for each kind of text. Costs that depend on the shape are the parser's; its
# entry has all shapes.
_WRITTEN = some(
    *("one word", "quotes", "escapes", "calls in JSON", "calls in tags", "arguments"),
    *("parameters", "a value", "thoughts", "arguments that nest", "open calls"),
)

_THOUGHT = some(
    *("one word", "white space", "lines", "half thoughts", "half tags", "opening tags"),
    *("white space in a thought", "thoughts", "an answer behind a thought", "quotes", "open calls"),
    *("white space in a tag", "arguments before the name", "a value"),
)


def answers() -> list[Entry]:
    return [
        *(_parser(thinking) for thinking in Thinking),
        *_parsers_with_stops(),
        *_stops(),
        _detokenizer(),
        _written("streamed chat", "openai/chat.py:ChatReply.push", lambda: _chat(True)),
        _written("chat with ids", "openai/reply.py:with_fields", _chat_with_ids),
        _written("whole chat", "openai/chat.py:ChatReply.whole", lambda: _chat(False)),
        _written("completion", "openai/completions.py:CompletionReply.push", _completion),
        _written(
            "completion's logprobs",
            "openai/completions.py:CompletionReply.push",
            lambda: _completion(0),
        ),
        _whole_calls(),
        _written("message", "anthropic/message_writer.py:MessageWriter.piece", _message),
        _written("hidden thoughts", "anthropic/conversation.py:signature_of", _hidden_message),
        _written("response", "responses/response_writer.py:ResponseWriter.piece", _response),
        _written(
            "response's logprobs",
            "responses/output_items.py:MessageLogprobs.of",
            _scored_response,
        ),
        _written("custom call", "responses/output_items.py:CustomCallItem.grow", _custom),
        _written(
            "compaction",
            "responses/endpoints/compaction.py:CompactionWriter.piece",
            _compaction,
        ),
        _sent_by_grpc(),
        *_sent_to_gateway(),
    ]


def _reader_of(parser: AnswerParser) -> Reader:
    finish = partial(parser.finish, BY_ITSELF)
    return Reader(lambda text: parser.push(Piece(text, _TOKEN)), finish)


def _whole_calls() -> Answer:
    def begin() -> Reader:
        parser = AnswerParser(Thinking.NEVER, TOOLS, whole_calls=True)
        return _reader_of(parser)

    return Answer("whole calls", (f"{_PARSING}/answer_parser.py:WholeCalls.push",), begin)


def _parser(thinking: Thinking) -> Answer:
    def begin() -> Reader:
        parser = AnswerParser(thinking, TOOLS)
        return _reader_of(parser)

    classes = (
        *("answer_parser.py:AnswerParser.push", "answer_splitter.py:ReasoningSplitter.push"),
        *("answer_splitter.py:ToolCallScanner.push", "json_call.py:JsonCall.push"),
        "function_call.py:FunctionCall.push",
    )
    functions = tuple(f"{_PARSING}/{name}" for name in classes)
    # After the thought, all answers are read alike.
    shapes = TEXTS if thinking is Thinking.NEVER else _THOUGHT
    return Answer(f"parser, thinking {thinking.value}", functions, begin, shapes)


def _parsers_with_stops() -> list[Entry]:
    rule = StopRule(("it was\n\n", " " * 1000 + "!", "</s>"))

    def entry(thinking: Thinking) -> Answer:
        def begin() -> Reader:
            parser = AnswerParser(thinking, TOOLS, stops=rule)
            return _reader_of(parser)

        classes = (
            *("answer_parser.py:ContentStops.take", "answer_parser.py:ContentStops.finish"),
            *("answer_parser.py:ThoughtCalls.push", "answer_parser.py:ThoughtCalls.finish"),
        )
        functions = tuple(f"{_PARSING}/{name}" for name in classes)
        return Answer(f"stops, thinking {thinking.value}", functions, begin, _THOUGHT)

    return [entry(thinking) for thinking in (Thinking.NEVER, Thinking.OPENED)]


def _stops() -> list[Entry]:
    near = "a" * 1023 + "b"
    sets = {
        "one short": ("</s>",),
        "sixteen long ones": (near, *(chr(ord("b") + at) * 1024 for at in range(15))),
        "sixteen that nest": tuple("a" * (1009 + at) + "b" for at in range(16)),
        "sixteen of one word": tuple("it was a fine morning. "[at:] + "!" for at in range(16)),
    }

    def entry(name: str, stops: tuple[str, ...]) -> Answer:
        def begin() -> Reader:
            scanner = StopStrings(stops)
            return Reader(scanner.push, scanner.finish)

        shapes = {
            **some("one word", "words", "emoji", "half ends"),
            "nearly a stop string": repeated("a" * 1000 + "c"),
        }
        functions = ("server/text/stop_strings.py:StopStrings.push",)
        return Answer(f"stop strings, {name}", functions, begin, shapes)

    return [entry(name, stops) for name, stops in sets.items()]


class _Spelled:
    """A stand-in for a tokenizer: token number i is the i-th piece of a text."""

    def __init__(self, pieces: list[str]) -> None:
        self.whole_texts = dict(enumerate(pieces))
        self.longest_token = 4

    def token_bytes(self, token: int) -> bytes:
        return self.whole_texts[token].encode(errors="surrogatepass")


def _detokenizer() -> Entry:
    def read(pieces: list[bytes]) -> object:
        class Torn:
            whole_texts: ClassVar[dict[int, str]] = {}

            @staticmethod
            def token_bytes(token: int) -> bytes:
                return pieces[token]

        detokenizer = IncrementalDetokenizer(Torn())  # type: ignore[arg-type]
        for token in range(len(pieces)):
            detokenizer.push(token)
        return detokenizer.finish()

    def torn(unit: bytes) -> Callable[[int], list[bytes]]:
        return lambda size: [unit[at % len(unit) :][:1] for at in range(size)]

    shapes = {
        "letters of a byte each": torn(b"a"),
        "characters that are torn": torn("\U0001f600".encode()),
        "bytes that begin nothing": torn(b"\x80"),
        "bytes that end nothing": torn(b"\xf0"),
    }
    functions = ("server/text/tokenizer.py:IncrementalDetokenizer.push",)
    return Whole("detokenizer", functions, shapes, read, 1 << 18)


def _written(name: str, function: str, writer: Callable[[], AnswerWriter]) -> Answer:
    def begin() -> Reader:
        made = writer()
        made.opening()

        def finish() -> object:
            made.ending(Piece("", None), _ENDING)
            return made.whole()

        return Reader(lambda text: made.piece(Piece(text, _TOKEN)), finish)

    return Answer(f"written {name}", (f"server/{function}",), begin, _WRITTEN)


def _parsed(thinking: Thinking = Thinking.ALLOWED) -> AnswerParser:
    return AnswerParser(thinking, TOOLS)


def _of_shape(
    shape: ReplyShape,
    prompt_tokens: Sequence[int] | None = None,
    ids: Sequence[TokenIds] | None = None,
) -> AnswerWriter:
    """Return the writer of a chunked reply. prompt_tokens: given if each chunk has usage. ids:
    given if chunks have token ids."""
    (writer,) = ChunkedReply(
        [shape], include_usage=True, with_hit=True, prompt_tokens=prompt_tokens, ids=ids
    ).writers()
    return writer


def _chat(streamed: bool) -> AnswerWriter:
    head = ReplyHead("a", "model")
    return _of_shape(ChatReply(head, _parsed(), _NAMES, with_logprobs=False, streamed=streamed))


def _chat_with_ids() -> AnswerWriter:
    """Return the writer of a chat with token ids, and with usage in each chunk."""
    ids = TokenIds(prompt_ids(_NO_TOKENS), streamed=True)
    head = ReplyHead("a", "model")
    shape = ChatReply(head, _parsed(), _NAMES, with_logprobs=False, streamed=True)
    return _of_shape(shape, [1], [ids])


def _completion(logprobs: int | None = None) -> AnswerWriter:
    shown = ShownFields(echo=False, logprobs=logprobs, prompt_logprobs=None)
    head, prompt = ReplyHead("a", "model"), ScoredPrompt(_NO_TOKENS)
    return _of_shape(CompletionReply(head, _NAMES, 0, shown, None, prompt, streamed=False))


def _message() -> AnswerWriter:
    head = MessageHead("msg_a", "model", 5, fills_context=False, with_hit=True)
    return MessageWriter(head, _parsed(), ThinkingChoice())


def _hidden_message() -> AnswerWriter:
    head = MessageHead("msg_a", "model", 5, fills_context=False, with_hit=True)
    return MessageWriter(head, _parsed(), ThinkingChoice(shown=False))


def _response() -> AnswerWriter:
    return _response_of(ToolName("f"))


def _custom() -> AnswerWriter:
    return _response_of(ToolName("f", is_custom=True))


def _scored_response() -> AnswerWriter:
    return _response_of(ToolName("f"), MessageLogprobs(_NAMES))


def _compaction() -> AnswerWriter:
    writer = CompactionWriter("resp_" + "a" * 32, [], AnswerParser(Thinking.NEVER, TOOLS))
    writer.piece(Piece("it was", _TOKEN))
    return writer


def _response_of(tool: ToolName, logprobs: MessageLogprobs | None = None) -> AnswerWriter:
    record = TurnRecord(_NO_TOKENS, (), b"")
    tools = ResponseTools([], {"f": tool}, True, ToolChoice())
    head = ResponseHead.of({"id": "resp_" + "a" * 32}, {}, True, carries_reasoning=True)
    writer = ResponseWriter(head, _parsed(), tools, logprobs)
    writer.keep(record, lambda stored: None)
    return writer


def _run(coroutine: Any) -> object:
    """Run a coroutine without an event loop; raise AssertionError if it waits."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine waits")


async def _parts(count: int) -> AsyncGenerator[AnswerPart, None]:
    for number in range(count):
        yield [m.TokenOut(_ID, number, -0.5, 1.5, number)]
    yield m.Finished(_ID, m.FinishReason.STOP, usage(5, count))


def _sent_by_grpc() -> Entry:
    async def write(message: object) -> None:
        """Drop the message."""

    def read(text: str) -> object:
        pieces = tokens_of(text)
        detokenizer = IncrementalDetokenizer(_Spelled(pieces))  # type: ignore[arg-type]
        return _run(write_tokens(_parts(len(pieces)), write, detokenizer))

    functions = ("server/grpc/generate_messages.py:write_tokens",)
    return Whole("sent by gRPC", functions, some("one word", "emoji"), read, 1 << 20)


def _sent_to_gateway() -> list[Entry]:
    try:
        from tasuki.server.smg.generate_messages import GatewayAnswer, GatewayRequest
    except ImportError:
        # The extra of the gateway is not installed.
        return []
    from tasuki.engine.messages import Submit

    def read(text: str) -> object:
        pieces = tokens_of(text)
        asked = GatewayRequest(
            Submit(_ID, _NO_TOKENS, SamplingParams()), ("a" * 1024,), True, True, True
        )
        detokenizer = IncrementalDetokenizer(_Spelled(pieces))  # type: ignore[arg-type]
        answer = GatewayAnswer(asked, (1 << 20,), detokenizer, lambda: None)

        async def all_of_them() -> int:
            return len([message async for message in answer.messages(_parts(len(pieces)))])

        return _run(all_of_them())

    functions = ("server/smg/generate_messages.py:GatewayAnswer.messages",)
    return [Whole("sent to a gateway", functions, some("words", "emoji"), read, 1 << 20)]
