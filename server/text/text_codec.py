"""One checkpoint's tokenizer, chat template, vocabulary size and context, and the threads for work
on its text.

WorkThreads are threads for a request's CPU work: parsing a body, rendering a template, tokenizing,
trying a grammar. WorkThreads owns the threads and the bounds on waiting work. `run` belongs to an
event loop's thread; the work itself must be safe on any thread. Work is of two kinds, large and
other. Invariants: at most `waiting` work items of each kind wait or run. One caller's work takes at
most half of the threads, and never another caller's turn. Large work has one thread of its own, so
only one such item competes for the interpreter's lock. If a caller leaves before its work begins,
the work is never begun. The memory of failed work is freed on its own thread.
"""

import asyncio
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.model.grammar.vocabulary import ALL_BYTES
from tasuki.model.vision.config import placeholder_ids
from tasuki.server.errors import Busy, InvalidRequest
from tasuki.server.text.rendering.chat_template import DEFAULT_CACHE_BYTES, ChatTemplate
from tasuki.utils.fair_threads import FairThreads, LinesFull
from tasuki.utils.signatures import Work
from tasuki.utils.system import FreeMemory, map_large_blocks, shorten_lock_turns

from .tokenizer import IncrementalDetokenizer, NamingDetokenizer, Tokenizer

Result = TypeVar("Result")

_THREADS = 4
_WAITING = 256
_LARGE_BYTES = 1 << 17
"""Largest size in bytes of a request body with work of the other kind, not large: a chat of some
30,000 tokens."""
_LARGE_SECONDS = 0.1
"""Seconds of CPU time. Longer work has read megabytes, and returns free memory to the system at its
end."""


class WorkThreads:
    """Threads for the CPU work of requests. threads: number of threads; they start with the first
    work. waiting: largest number of work items running or waiting. Construction also shortens each
    thread's turns with the interpreter's lock, because the event loop writes tokens while prompts
    are read. It also sets the way this process allocates large blocks of memory."""

    def __init__(self, threads: int = _THREADS, waiting: int = _WAITING) -> None:
        shorten_lock_turns()
        map_large_blocks()
        of_a_line = max(1, threads // 2)
        self._threads = FairThreads(threads, of_a_line, "tasuki-front", waiting)
        self._large = FairThreads(1, 1, "tasuki-large", waiting)
        self._waiting = waiting
        self._memory = FreeMemory()

    async def run(self, line: str, work: Work[Result], size: int = 0) -> Result:
        """Run the work on a thread. Return its result or raise its exception. line: name of the
        caller's queue (RequestContext.line); queues take turns. size: number of bytes read by the
        work. Raises Busy if `waiting` work items of its kind are held: immediately, or later in
        favour of another queue."""
        threads = self._large if size > _LARGE_BYTES else self._threads
        try:
            begun = threads.submit(line, lambda: _tidied(work, self._memory))
            return await asyncio.wrap_future(begun)
        except LinesFull as error:
            raise Busy(
                f"{self._waiting} prompts wait to be read: ask again in a moment, or another node"
            ) from error


def _tidied(work: Work[Result], memory: FreeMemory) -> Result:
    """Run the work. If it fails, free the objects in the frames of its exception on this thread,
    because freeing them takes a while. After long work, return free memory to the system."""
    began = time.thread_time()
    try:
        return work()
    except Exception as error:
        failed: BaseException | None = error
        while failed is not None:
            traceback.clear_frames(failed.__traceback__)
            failed = failed.__cause__ or failed.__context__
        raise
    finally:
        if time.thread_time() - began > _LARGE_SECONDS:
            memory.give_back_later()


@dataclass(frozen=True)
class TextCodec:
    """A checkpoint's tokenizer, template and limits. Immutable, any thread. tokenizer, template:
    None if the checkpoint has none. Without a tokenizer, requests with token ids work, answers have
    no text, and requests with text are rejected. max_tokens: the model's context in tokens.
    placeholders: token ids standing for pictures. work: threads for CPU work. grammars: trials of
    requested grammars."""

    vocab_size: int
    max_tokens: int
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
    placeholders: frozenset[int] = frozenset()
    work: WorkThreads = field(default_factory=WorkThreads, repr=False, compare=False)
    grammars: GrammarTrials = field(
        default_factory=lambda: GrammarTrials.of(ALL_BYTES), repr=False, compare=False
    )

    @staticmethod
    def load(
        model_dir: Path,
        vocab_size: int,
        max_tokens: int,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        grammars: GrammarTrials | None = None,
    ) -> "TextCodec":
        """Load the codec of a checkpoint folder. max_tokens: the model's context in tokens.
        cache_bytes: largest size of the cache of conversations' tokens. grammars: trials of
        requested grammars; None: a new trial server without a vocabulary. Raises TokenizerError,
        ChatTemplateError and ModelConfigError if a file is broken."""
        tokenizer = Tokenizer.load(model_dir)
        template = None
        if tokenizer is not None:
            template = ChatTemplate.load(model_dir, tokenizer, cache_bytes)
        trials = GrammarTrials.of(ALL_BYTES) if grammars is None else grammars
        placeholders = placeholder_ids(model_dir)
        return TextCodec(vocab_size, max_tokens, tokenizer, template, placeholders, grammars=trials)

    def require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InvalidRequest("text: this checkpoint has no tokenizer.json: send token_ids")
        return self.tokenizer

    def require_template(self) -> ChatTemplate:
        self.require_tokenizer()
        if self.template is None:
            raise InvalidRequest(
                "messages: this checkpoint has no chat template: send text or token_ids"
            )
        return self.template

    @property
    def most_characters(self) -> int:
        """Return an upper limit on the characters of a text within the model's context: its tokens
        times the longest token's bytes."""
        longest = 1 if self.tokenizer is None else self.tokenizer.longest_token
        return self.max_tokens * longest

    def chat_tokens(self) -> dict[str, int]:
        """Return the number of conversation tokens so far, by their source: encoded anew, or taken
        from the cache. Return an empty dict without a template."""
        if self.template is None:
            return {}
        pieces = self.template.pieces
        return {"encoded": pieces.encoded, "remembered": pieces.remembered}

    def detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.tokenizer)

    def naming_detokenizer(self) -> IncrementalDetokenizer:
        """Return a detokenizer for text with special tokens written by name. Without a tokenizer
        all text is empty."""
        tokenizer = self.tokenizer
        return self.detokenizer() if tokenizer is None else NamingDetokenizer(tokenizer)
