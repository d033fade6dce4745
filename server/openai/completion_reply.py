"""A plain completion's answer in OpenAI's shape: text and logprobs, the prompt's before it where
they are asked for.

Owns the answer so far. Has no part in HTTP. One answer, one thread.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.replies.growing_text import GrowingText
from tasuki.server.replies.logprob_columns import LogprobColumns
from tasuki.server.replies.scored_prompt import ScoredPrompt, json_prompt_logprobs
from tasuki.server.replies.token_logprobs import TokenNames, json_logprob
from tasuki.server.text.text_answer import Ending, Piece

from .events import TextChoice, to_json
from .reply import ReplyHead


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
    prompt_in_choice = True

    def __init__(
        self,
        head: ReplyHead,
        names: TokenNames,
        index: int,
        shown: ShownFields,
        prompt_text: str | None,
        prompt: ScoredPrompt,
        *,
        streamed: bool,
    ) -> None:
        """names: of tokens in logprobs. index: of the choice. prompt_text: None where token ids
        were given. prompt: takes its scores where it is scored. streamed: nothing is kept for
        `whole`, so that memory does not grow with the answer."""
        self.head = head
        self._index = index
        self._text = TextChoice(self._choice)
        self._names = names
        self._shown = shown
        self._prompt_text = prompt_text
        self._prompt = prompt
        self._begun = False
        self.keeps = not streamed
        self.is_streamed = streamed
        self.plain = None if shown.echo else self._plain
        self._texts = GrowingText()
        self._offset = 0
        self._logprobs = LogprobColumns()

    def opening(self) -> list[bytes]:
        return []

    def push(self, piece: Piece) -> list[bytes]:
        return [*self._begin(), *self._push(piece)]

    def _push(self, piece: Piece) -> list[bytes]:
        if not self.is_streamed:
            self._texts.add(piece.text)
        if self._shown.logprobs is None or piece.token is None:
            return [self._text.holding(piece.text)] if piece.text else []
        token = piece.token
        columns = self._columns()
        self._add(columns, token.token, token.logprob, token.top)
        return [self._with_logprobs(piece.text, columns)]

    @property
    def _plain(self) -> TextChoice | None:
        """As ReplyShape's `plain`, once the prompt is written."""
        return self._text if self.is_streamed and self._shown.logprobs is None else None

    def _begin(self) -> list[bytes]:
        """The prompt, before anything of the answer. Once; its scores have come by then."""
        if self._begun or not self._shown.echo:
            return []
        self._begun = True
        self.plain = self._plain
        text = self._echoed()
        if not self.is_streamed:
            self._texts.add(text)
        if self._shown.logprobs is None:
            return [self._text.holding(text)] if text else []
        columns = self._columns()
        self._add(columns, int(self._prompt.tokens[0]), None, ())
        for scored in self._prompt.scored(self._shown.logprobs):
            self._add(columns, scored.token, scored.logprob, scored.top)
        return [self._with_logprobs(text, columns)]

    def _echoed(self) -> str:
        if self._prompt_text is not None:
            return self._prompt_text
        tokenizer = self._names.tokenizer
        return "" if tokenizer is None else tokenizer.decode(self._prompt.tokens.tolist())

    def _columns(self) -> LogprobColumns:
        """Return those of the next tokens: the reply's, or fresh ones for a stream's event."""
        return LogprobColumns() if self.is_streamed else self._logprobs

    def _add(
        self, columns: LogprobColumns, token: int, logprob: float | None, top: TopLogprobs
    ) -> None:
        """Add the next token, its logprob, which a prompt's first has not, and the likeliest in its
        place."""
        shown = None if logprob is None else json_logprob(logprob)
        alternatives = None if logprob is None else self._alternatives(token, logprob, top)
        columns.add(self._names.name(token), shown, alternatives, self._offset)
        self._offset += len(self._names.text(token))

    def _with_logprobs(self, text: str, columns: LogprobColumns) -> bytes:
        """Return a stream's choice. A whole reply has no use for it."""
        if not self.is_streamed:
            return b""
        return msgspec.json.encode({**self._choice(text), "logprobs": columns.json()})

    def finish(self, ending: Ending) -> list[bytes]:
        begun = self._begin()
        return [*begun, to_json({**self._choice(""), "finish_reason": ending.reason.value})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        choice = {
            **self._choice(str(self._texts)),
            "logprobs": None if self._shown.logprobs is None else self._logprobs.json(),
            "finish_reason": ending.reason.value,
        }
        top = self._shown.prompt_logprobs
        if top is not None:
            tokenizer = self._names.tokenizer
            choice["prompt_logprobs"] = json_prompt_logprobs(self._prompt, top, tokenizer)
        return choice

    @property
    def kept_bytes(self) -> int:
        return self._texts.kept_bytes + self._logprobs.kept_bytes

    def beside_choices(self) -> dict[str, Any]:
        return {}

    def reasoning_tokens(self, ending: Ending) -> None:
        """A completion is not taken apart."""

    def _alternatives(self, token: int, logprob: float, top: TopLogprobs) -> dict[str, float]:
        """By their names, which as in OpenAI's own answer may be one more than was asked for: the
        token itself has its logprob too."""
        return {
            self._names.name(alternative): json_logprob(found)
            for alternative, found in reversed((*top, (token, logprob)))
        }

    def _choice(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}
