"""A plain completion's answer in OpenAI's shape: text and logprobs, the prompt's before it where
they are asked for.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

from dataclasses import dataclass
from typing import Any

from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.replies.scored_prompt import ScoredPrompt, json_prompt_logprobs
from tasuki.server.text.text_answer import Ending, Piece
from tasuki.server.text.tokenizer import Tokenizer

from .events import TextChoice, to_json
from .reply import ReplyHead
from .usage import json_logprob, token_text

_LOGPROBS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


@dataclass(frozen=True)
class ShownFields:
    """What a completion's choices hold beside their answers. echo: the prompt. logprobs: of so many
    of the likeliest tokens beside each token's own; None: of none. prompt_logprobs: as vLLM has
    them, likewise."""

    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None

    @property
    def scored_top(self) -> int | None:
        """How many of the likeliest tokens are wanted beside each of the prompt; None: the prompt
        is not scored."""
        echoed = self.logprobs if self.echo else None
        asked = [top for top in (echoed, self.prompt_logprobs) if top is not None]
        return max(asked, default=None)


class CompletionReply:
    whole_kind = chunk_kind = "text_completion"
    complete = may_complete = False

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer | None,
        index: int,
        shown: ShownFields,
        prompt_text: str | None,
        prompt: ScoredPrompt,
        *,
        streamed: bool,
    ) -> None:
        """index: of the choice. prompt_text: None where token ids were given. prompt: takes its
        scores where it is scored. streamed: nothing is kept for `whole`, so that memory does not
        grow with the answer."""
        self.head = head
        self._index = index
        self._text = TextChoice(self._choice)
        self._tokenizer = tokenizer
        self._shown = shown
        self._prompt_text = prompt_text
        self._prompt = prompt
        self._begun = False
        self._streamed = streamed
        self.plain = None if shown.echo else self._plain
        self._texts: list[str] = []
        self._offset = 0
        self._logprobs: dict[str, list[Any]] = {name: [] for name in _LOGPROBS}

    def opening(self) -> list[bytes]:
        return []

    def push(self, piece: Piece) -> list[bytes]:
        return [*self._begin(), *self._push(piece)]

    def _push(self, piece: Piece) -> list[bytes]:
        if not self._streamed:
            self._texts.append(piece.text)
        if self._shown.logprobs is None or piece.token is None:
            return [self._text.holding(piece.text)] if piece.text else []
        token = piece.token
        logprobs = self._entries([(token.token, token.logprob, token.top)])
        return [to_json({**self._choice(piece.text), "logprobs": logprobs})]

    @property
    def _plain(self) -> TextChoice | None:
        """As ReplyShape's `plain`, once the prompt is written."""
        return self._text if self._streamed and self._shown.logprobs is None else None

    def _begin(self) -> list[bytes]:
        """The prompt, before anything of the answer. Once; its scores have come by then."""
        if self._begun or not self._shown.echo:
            return []
        self._begun = True
        self.plain = self._plain
        text = self._echoed()
        if not self._streamed:
            self._texts.append(text)
        if self._shown.logprobs is None:
            return [self._text.holding(text)] if text else []
        tokens: list[tuple[int, float | None, TopLogprobs]]
        tokens = [(int(self._prompt.tokens[0]), None, ())]
        for scored in self._prompt.scored(self._shown.logprobs):
            tokens.append((scored.token, scored.logprob, scored.top))
        return [to_json({**self._choice(text), "logprobs": self._entries(tokens)})]

    def _echoed(self) -> str:
        if self._prompt_text is not None:
            return self._prompt_text
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(self._prompt.tokens.tolist())

    def _entries(self, tokens: list[tuple[int, float | None, TopLogprobs]]) -> dict[str, list[Any]]:
        """Of the next tokens, each with its logprob, None of a prompt's first, and the likeliest in
        its place."""
        found: dict[str, list[Any]] = {name: [] for name in _LOGPROBS}
        for token, logprob, top in tokens:
            text, _ = token_text(token, self._tokenizer)
            found["tokens"].append(text)
            found["token_logprobs"].append(None if logprob is None else json_logprob(logprob))
            found["top_logprobs"].append(
                None if logprob is None else self._alternatives(token, logprob, top)
            )
            found["text_offset"].append(self._offset)
            self._offset += len(text)
        if not self._streamed:
            for name, values in found.items():
                self._logprobs[name] += values
        return found

    def finish(self, ending: Ending) -> list[bytes]:
        begun = self._begin()
        return [*begun, to_json({**self._choice(""), "finish_reason": ending.reason.value})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        choice = {
            **self._choice("".join(self._texts)),
            "logprobs": None if self._shown.logprobs is None else self._logprobs,
            "finish_reason": ending.reason.value,
        }
        top = self._shown.prompt_logprobs
        if top is not None:
            choice["prompt_logprobs"] = json_prompt_logprobs(self._prompt, top, self._tokenizer)
        return choice

    def beside_choices(self) -> dict[str, Any]:
        return {}

    def reasoning_tokens(self, ending: Ending) -> None:
        """A completion is not taken apart."""

    def _alternatives(self, token: int, logprob: float, top: TopLogprobs) -> dict[str, float]:
        """By their texts, which as in OpenAI's own answer may be one more than was asked for: the
        token itself has its logprob too."""
        named = (*top, (token, logprob)) if top else ()
        return {
            token_text(alternative, self._tokenizer)[0]: json_logprob(found)
            for alternative, found in reversed(named)
        }

    def _choice(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}
