"""Rendering of messages as token ids by the checkpoint's own jinja template, with marks for
checkpoints at message ends.

ChatTemplate owns the compiled template and its caches of conversations: token ids of their pieces,
and digests of their prefixes. Any thread. Invariants: special tokens come only from the template,
never from a message. A conversation is always rendered whole, so a template may look ahead and no
prompt is stale. Caches change no result. Marks cost a bounded number of additionally rendered
messages. The result of `continuation` depends on the new messages alone, so a session's token log
only ever grows and its prefix stays cached.

message_ends(): finds the message ends to mark. A message's end counts if the messages up to it,
rendered alone, are a prefix of the whole text. A template may render a turn differently once others
follow. In a short conversation every such part is rendered. In a long one all ends of one kind of
message take the result of the kind's shortest part. Pure. Invariant: the rendered parts have
together at most twice the conversation's messages and _MORE_MESSAGES more. Parts cached by the
caller are included, so no result depends on a cache. Ends not covered by a part are left out; this
costs a checkpoint, but no wrong token.

TurnEnds predicts whether the next turn can continue from this turn's exact end. If not, the next
turn continues from the last message's end, before the answer. There are three causes. First, the
client sends an answer back without its reasoning. Second, the template drops the reasoning. Third,
the template renders an old answer differently than a new one begins. TurnEnds renders short example
conversations to find out. It reads only the kinds of the client's last messages. It owns the
results for one template. Any thread. Invariant: every cached result comes from a rendering.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.engine.messages import PromptPicture, Tokens
from tasuki.server.text.chat_message import ChatMessage, ChatTemplateError
from tasuki.server.text.parsing.call_reader import FUNCTION_TAG
from tasuki.server.text.text_answer import END_OF_THINK, THINK, Thinking, thinking_behind
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.utils.bounded_cache import BoundedCache

from .chat_cache import PARTS_BYTES, ConversationParts, EncodedPieces, Part
from .compiled_template import (
    MARK_BEGIN,
    MARK_END,
    CompiledTemplate,
    MessagePlaces,
    SpecialTokenGuard,
    any_of,
    matches,
)

# The sum over all parts of 31 messages.
_MORE_MESSAGES = 512


def message_ends(
    messages: Sequence[Mapping[str, Any]],
    places: MessagePlaces,
    part: Callable[[int], int | None],
) -> set[int]:
    """Return the positions of the message ends to mark, in the text of all messages. places:
    positions of the messages in the text. part: function of a count N. It returns the length of the
    first N messages rendered alone, if the text begins with this rendering. It returns None if not,
    or if the template rejects them."""
    short = len(messages) * (len(messages) + 1) // 2 <= _MORE_MESSAGES
    left = 2 * len(messages) + _MORE_MESSAGES
    later_question = _later_question(messages)
    holds: dict[Hashable, bool] = {}
    ends = set()
    # First the whole conversation, because the next turn begins at its end.
    for count in (len(messages), *range(1, len(messages))):
        known = count in places.ends and not short
        kind = _kind(messages, count, later_question[count - 1]) if known else count
        if kind in holds:
            if holds[kind]:
                ends.add(places.ends[count])
            continue
        if count == len(messages) and places.closed is not None:
            length: int | None = places.closed
        elif count <= left:
            left -= count
            length = part(count)
        else:
            continue
        holds[kind] = length is not None
        if length is not None:
            ends.add(length)
    return ends


def _kind(messages: Sequence[Mapping[str, Any]], count: int, later_question: bool) -> Hashable:
    """Return the properties of message number `count` with a possible effect on its rendering once
    others follow. later_question: a user's message follows later."""
    followed_by = messages[count]["role"] if count < len(messages) else None
    return (_shape(messages[count - 1]), followed_by, later_question)


def _shape(message: Mapping[str, Any]) -> Hashable:
    given = message["content"]
    content = given if isinstance(given, str) else "".join(part.get("text", "") for part in given)
    return (
        message["role"],
        bool(message.get("tool_calls")),
        bool(message.get("reasoning_content")),
        not given,
        END_OF_THINK in content,
        content.startswith("<tool_response>"),
    )


def _later_question(messages: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return for each message True if a user's message follows at any later place."""
    found = []
    later = False
    for message in reversed(messages):
        found.append(later)
        later = later or message["role"] == "user"
    return found[::-1]


_REMEMBERED_BYTES = 1 << 18
"""Size of the cache in bytes: room for the template variables of some hundreds of clients."""

# Placeholders for arbitrary texts.
_ANSWER = f"{MARK_BEGIN}answer{MARK_END}"
_THOUGHT = f"{MARK_BEGIN}thought{MARK_END}"
_QUESTION = {"role": "user", "content": "?"}
_RESULT = {"role": "tool", "content": "?"}
_CALL = {"type": "function", "function": {"name": "f", "arguments": {}}}

_Shown = Mapping[str, Any]


class TurnEnds:
    def __init__(self, template: CompiledTemplate) -> None:
        self._template = template
        self._remembered: BoundedCache[bytes, bool] = BoundedCache(_REMEMBERED_BYTES)

    def may_be_lost(
        self,
        messages: Sequence[ChatMessage],
        thinking: Thinking,
        variables: Mapping[str, Any],
    ) -> bool:
        """Return True if the next turn's prompt may begin with these messages' text, but not with
        their text and the generated answer. thinking: thinking state of the answer. variables:
        template variables of the request."""
        last = messages[-1].role
        if last not in ("user", "tool"):
            return False
        returned = _returns_thoughts(messages)
        asked = repr((last, thinking, returned, variables)).encode(errors="surrogatepass")
        name = hashlib.blake2b(asked, digest_size=16).digest()
        found = self._remembered.get(name)
        if found is None:
            ways = (False, True) if returned is None else (returned,)
            found = any(self._loses(last, thinking, way, variables) for way in ways)
            self._remembered.put(name, found, len(name))
        return found

    def _loses(
        self, last: str, thinking: Thinking, returned: bool, variables: Mapping[str, Any]
    ) -> bool:
        """Return True if the next turn's prompt does not begin with the text of this turn and its
        answer, for an example conversation. last: role of its last message. returned: the client
        sends reasoning back. thinking, variables: as for may_be_lost()."""
        thinks = returned and thinking is not Thinking.NEVER
        begun: list[_Shown] = [_QUESTION]
        if last == "tool":
            begun += [_answer(thinks, calls=True), _RESULT]
        try:
            closed, opened = (
                self._template.text(begun, flag, variables=variables) for flag in (False, True)
            )
        except ChatTemplateError:
            return False
        for text in self._next_turns(begun, thinks, variables):
            if not text.startswith(closed):
                # The beginning of this turn is lost too.
                continue
            is_whole = thinks or thinking is Thinking.NEVER
            if not (is_whole and text.startswith(opened) and _goes_on(text[len(opened) :], thinks)):
                return True
        return False

    def _next_turns(
        self, begun: Sequence[_Shown], thinks: bool, variables: Mapping[str, Any]
    ) -> Iterator[str]:
        """Yield the rendered texts of example conversations continuing after an answer. Leave out
        those rejected by the template. begun: messages before the answer. thinks: the answer has
        reasoning."""
        for behind in (_QUESTION, _RESULT):
            answer = _answer(thinks, calls=behind is _RESULT)
            try:
                yield self._template.text([*begun, answer, behind], False, variables=variables)
            except ChatTemplateError:
                continue


def _goes_on(text: str, thinks: bool) -> bool:
    """Return True if the text begins as the model's own answer did. thinks: the answer has
    reasoning."""
    if thinks:
        return text.removeprefix(THINK).lstrip().startswith(_THOUGHT)
    return text.startswith(_ANSWER)


def _answer(thinks: bool, calls: bool) -> _Shown:
    called = {"tool_calls": [_CALL]} if calls else {}
    thought = {"reasoning_content": _THOUGHT} if thinks else {}
    return {"role": "assistant", "content": _ANSWER, **thought, **called}


def _returns_thoughts(messages: Sequence[ChatMessage]) -> bool | None:
    """Return True if the client's latest assistant message has its reasoning; None without such a
    message."""
    for message in reversed(messages):
        if message.role == "assistant":
            return bool(message.reasoning) or END_OF_THINK in message.content
    return None


DEFAULT_CACHE_BYTES = 64 << 20
SPECIAL_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Names of special tokens: keys of tokenizer_config.json, and variables of chat templates."""
GENERAL_CLASS = "PreTrainedTokenizerFast"
"""Name of transformers' class for any tokenizer.json."""

_NO_VARIABLES: Mapping[str, Any] = {}
_NO_TOKENS: Tokens = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation rendered as token ids. tokens: int32 [T]. marks: ascending token counts at
    message ends, each before a special token or at the end of the prompt. thinking: thinking state
    of an answer to the prompt. changed: token range [begin, end) rendered differently in the
    previous turn; None if there is none, or the previous turn is not cached. message_end: number of
    tokens before the answer's opening, if the next turn may continue from there, not from this
    turn's exact end; else None. pictures: those of the prompt, by ascending place; a template gives
    none."""

    tokens: Tokens
    marks: tuple[int, ...] = ()
    thinking: Thinking = Thinking.NEVER
    changed: tuple[int, int] | None = None
    message_end: int | None = None
    pictures: tuple[PromptPicture, ...] = ()


class ChatTemplate:
    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        variables: Mapping[str, str],
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        tokenizer_class: str = GENERAL_CLASS,
    ) -> None:
        """source: jinja text of the template. variables: names of special tokens, such as
        `bos_token`, for the template. cache_bytes: largest size of the cache of token ids.
        tokenizer_class: transformers' name of the checkpoint's tokenizer class. Raises
        ChatTemplateError."""
        self.source = source
        self.tokenizer_class = tokenizer_class
        self.variables = variables
        self._template = CompiledTemplate(source, variables)
        self._turn_ends = TurnEnds(self._template)
        self._guard = SpecialTokenGuard(tokenizer)
        self._added = any_of(tokenizer.added_tokens)
        self._special_ids = {
            name: np.array([token], dtype=np.int32)
            for name, token in tokenizer.added_tokens.items()
        }
        self._longest = max(map(len, tokenizer.added_tokens), default=1)
        self.pieces = EncodedPieces(tokenizer, cache_bytes)
        self._parts: BoundedCache[bytes, Part] = BoundedCache(PARTS_BYTES)
        with suppress(ChatTemplateError):
            # Compute it now: sessions ask for it on an event loop, and rendering would block the
            # loop.
            self.answer_opening()

    @property
    def calls_in_tags(self) -> bool:
        """Return True if the template teaches the model to write a call's arguments between tags,
        not as JSON."""
        return FUNCTION_TAG in self.source

    @staticmethod
    def load(
        model_dir: Path, tokenizer: Tokenizer, cache_bytes: int = DEFAULT_CACHE_BYTES
    ) -> "ChatTemplate | None":
        """Load chat_template.jinja of a checkpoint folder, or else the template in
        tokenizer_config.json. Return None if neither exists. cache_bytes: largest size of the cache
        of token ids. Raises ChatTemplateError."""
        config: dict[str, Any] = {}
        config_path = model_dir / "tokenizer_config.json"
        if config_path.exists():
            try:
                config = json.loads(_read(config_path))
            except ValueError as error:
                raise ChatTemplateError(
                    f"{config_path} is not JSON ({error}): copy the file again"
                ) from error
            if not isinstance(config, dict):
                raise ChatTemplateError(f"{config_path} is not a JSON object: copy the file again")
        template_path = model_dir / "chat_template.jinja"
        source = config.get("chat_template")
        if template_path.exists():
            source = _read(template_path)
        if not isinstance(source, str):
            return None
        named = config.get("tokenizer_class")
        tokenizer_class = named if isinstance(named, str) else GENERAL_CLASS
        names = _special_names(config)
        return ChatTemplate(source, tokenizer, names, cache_bytes, tokenizer_class)

    def prompt(
        self,
        messages: Sequence[ChatMessage],
        *,
        open_answer: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = _NO_VARIABLES,
        salt: bytes = b"",
        most: int | None = None,
        breakpoints: Sequence[int] = (),
    ) -> RenderedPrompt:
        """Return a whole conversation as token ids. open_answer: end with the opening of the
        assistant's turn.

        tools: definitions in OpenAI's shape, for the template's `tools` variable. variables:
        further variables by name, such as `enable_thinking`; variables set by every rendering
        cannot be overridden. salt: cache salt; callers with the same salt share cached
        conversations. most: allowed number of tokens; more raise TooManyTokens. breakpoints: counts
        of messages; the ends of the first N messages become the marks, in place of the marks chosen
        here. A count is left out if its end cannot be found in the text.
        """
        shown, definitions = self._guard.messages(messages), self._guard.tools(tools)
        asked = self._guard.variables(variables)
        text, places = self._template.text_and_places(shown, open_answer, definitions, asked)
        parts = ConversationParts(self._parts, salt, messages, tools, variables)
        if places.closed is not None:
            parts.remember(len(messages), text[: places.closed])

        def part(count: int) -> int | None:
            return parts.begins(
                count, text, lambda: self._template.text(shown[:count], False, definitions, asked)
            )

        ends = {places.ends[count] for count in breakpoints if count in places.ends}
        ends = ends or message_ends(shown, places, part)
        rendered = self._encode(salt, text, ends, most)
        if not open_answer:
            return rendered
        changed = None
        answered = last_answer(messages)
        if parts.was_changed(answered, shown[answered], text, places):
            with suppress(ChatTemplateError):
                before = self._template.text(shown[: answered + 1], False, definitions, asked)
                until = text[: places.ends[answered + 1]]
                changed = self._difference(salt, before, rendered.tokens, until)
        parts.remember_asked(text)
        thinking = thinking_behind(text, self.source)
        closed = part(len(messages)) if places.closed is None else places.closed
        message_end = None
        if closed is not None and self._turn_ends.may_be_lost(messages, thinking, asked):
            message_end = self._without(salt, rendered.tokens, text[closed:])
        return replace(rendered, thinking=thinking, changed=changed, message_end=message_end)

    def _without(self, salt: bytes, tokens: Tokens, end: str) -> int | None:
        """Return the number of tokens before those of the text `end`; None if `tokens` does not end
        with them. salt: cache salt."""
        ending = self._encode(salt, end, set()).tokens
        left = len(tokens) - len(ending)
        return left if left > 0 and np.array_equal(tokens[left:], ending) else None

    def _difference(
        self, salt: bytes, before: str, tokens: Tokens, until: str
    ) -> tuple[int, int] | None:
        """Return the token range from the first token differing from the text `before` to the end
        of the text `until`. Return None if the range is empty. REQUIRES: the text of `tokens`
        begins with `until`."""
        earlier = self._encode(salt, before, set()).tokens
        both = min(len(earlier), len(tokens))
        differing = np.flatnonzero(earlier[:both] != tokens[:both])
        begin = int(differing[0]) if len(differing) else both
        end = len(self._encode(salt, until, set()).tokens)
        return (begin, end) if begin < end else None

    def takes(self, variables: Mapping[str, Any]) -> bool:
        """Return True if the template can render a short example question with the variables.
        variables: as for prompt()."""
        asked = self._guard.variables(variables)
        try:
            self._template.text([{"role": "user", "content": "?"}], True, variables=asked)
        except ChatTemplateError:
            return False
        return True

    def continuation(
        self, messages: Sequence[ChatMessage], *, salt: bytes = b"", most: int | None = None
    ) -> RenderedPrompt:
        """Return the token ids the template adds for `messages` after any closed turn. salt, most:
        as for prompt(). Raises ChatTemplateError."""
        text = self._after_answer(self._guard.messages(messages), False)
        closing = self._closing
        if not text.startswith(closing):
            raise ChatTemplateError(
                "messages: the chat template rewrites earlier turns: send the whole conversation"
            )
        return self._encode(salt, text[len(closing) :], {len(text) - len(closing)}, most)

    def without_closing(self, rendered: RenderedPrompt) -> RenderedPrompt:
        """Return a conversation ending with an assistant's message, without the message's closing
        tokens. The model's answer then continues the message. Raises ChatTemplateError if the
        closing is not at the end."""
        closing = self.answer_closing()
        left = len(rendered.tokens) - len(closing)
        if left < 0 or not np.array_equal(rendered.tokens[left:], closing):
            raise ChatTemplateError(
                "messages: the chat template ends the last message as no other: it cannot go on"
            )
        marks = tuple(mark for mark in rendered.marks if mark <= left)
        return RenderedPrompt(rendered.tokens[:left], marks, Thinking.NEVER)

    def next_turn(
        self,
        messages: Sequence[ChatMessage],
        *,
        variables: Mapping[str, Any] = _NO_VARIABLES,
        salt: bytes = b"",
        most: int | None = None,
    ) -> RenderedPrompt:
        """Return the token ids for `messages` after any closed turn, as continuation() does,
        followed by an answer's opening. variables, salt, most: as for prompt(). Raises
        ChatTemplateError."""
        shown, asked = self._guard.messages(messages), self._guard.variables(variables)
        closed, opened = (self._after_answer(shown, flag, asked) for flag in (False, True))
        closing = self._closing
        if not closed.startswith(closing) or not opened.startswith(closed):
            raise ChatTemplateError(
                "messages: the chat template rewrites earlier turns: send the whole conversation"
            )
        ends = {len(closed) - len(closing)}
        rendered = self._encode(salt, opened[len(closing) :], ends, most)
        return replace(rendered, thinking=thinking_behind(opened, self.source))

    def answer_opening(self) -> Tokens:
        """Return the token ids, int32 [T], of the template's opening of an assistant's turn."""
        return self._opening

    def answer_closing(self) -> Tokens:
        """Return the token ids, int32 [T], of the template's closing of an assistant's turn. They
        begin with the end token sampled by the model."""
        return self._encode(b"", self._closing, set()).tokens

    @cached_property
    def thought_end(self) -> str:
        """Return the template's text between the model's thinking and the closing tag. Return a
        line break if the template shows no thinking."""
        answer = {"role": "assistant", "content": "?", "reasoning_content": _THOUGHT}
        try:
            text = self._template.text([_QUESTION, answer], False)
        except ChatTemplateError:
            return "\n"
        _, found, behind = text.rpartition(_THOUGHT)
        end, closed, _ = behind.partition(END_OF_THINK)
        return end if found and closed and not end.strip() else "\n"

    @cached_property
    def _opening(self) -> Tokens:
        closed, opened = (self._after_answer([_QUESTION], flag) for flag in (False, True))
        if not opened.startswith(closed):
            raise ChatTemplateError("the chat template has no opening for an answer: append tokens")
        return self._encode(b"", opened[len(closed) :], set()).tokens

    @cached_property
    def _closing(self) -> str:
        return self._after_answer([], False)

    def _after_answer(
        self,
        messages: list[dict[str, Any]],
        open_answer: bool,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """Return the text the template writes after an answer's text if `messages` follow.
        open_answer: end with an answer's opening."""
        answer = {"role": "assistant", "content": _ANSWER}
        text = self._template.text([_QUESTION, answer, *messages], open_answer, variables=variables)
        _, found, after = text.rpartition(_ANSWER)
        if not found:
            raise ChatTemplateError("the chat template drops an answer's text: append tokens")
        return after

    def _encode(
        self, salt: bytes, text: str, ends: set[int], most: int | None = None
    ) -> RenderedPrompt:
        """Encode a rendered text as token ids with marks. Special tokens split the text, and each
        piece between two of them is encoded alone. Equal pieces therefore have equal tokens
        everywhere. ends: positions of message ends in the text. salt, most: as for prompt()."""
        specials = list(matches(self._added, text, self._longest))
        begins = [0, *(special.end() for special in specials)]
        stops = [*(special.start() for special in specials), len(text)]
        pieces = [
            self._guard.restore(text[begin:stop]) for begin, stop in zip(begins, stops, strict=True)
        ]
        left = None if most is None else most - len(specials)
        encoded = self.pieces.tokens(salt, [piece for piece in pieces if piece], left)
        parts: list[Tokens] = []
        marks = []
        count = 0
        for piece, stop, special in zip_longest(pieces, stops, specials):
            if piece:
                parts.append(encoded[piece])
                count += len(encoded[piece])
            if stop in ends:
                marks.append(count)
            if special is not None:
                parts.append(self._special_ids[special.group()])
                count += 1
        tokens = np.concatenate(parts) if parts else _NO_TOKENS
        return RenderedPrompt(tokens, tuple(sorted(set(marks) - {0})))


def last_answer(messages: Sequence[ChatMessage]) -> int:
    """Return the number of messages before the last assistant's message; 0 if there is none."""
    roles = [message.role for message in messages]
    return len(roles) - 1 - roles[::-1].index("assistant") if "assistant" in roles else 0


def _special_names(config: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names


def _read(path: Path) -> str:
    """Return the text of a file. Raises ChatTemplateError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateError(f"{path} cannot be read ({error}): copy the file again") from error
