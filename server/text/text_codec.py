"""One checkpoint's tokenizer, chat template, vocabulary size and context, and the threads that work
on its text."""

from dataclasses import dataclass, field
from pathlib import Path

from tasuki.model.grammar.trials.client import GrammarTrials
from tasuki.model.grammar.vocabulary import ALL_BYTES
from tasuki.server.errors import InvalidRequest
from tasuki.server.work_threads import WorkThreads

from .chat_template import DEFAULT_CACHE_BYTES, ChatTemplate
from .tokenizer import IncrementalDetokenizer, NamingDetokenizer, Tokenizer


@dataclass(frozen=True)
class TextCodec:
    """Immutable, any thread. tokenizer and template are None where the checkpoint has none: token
    ids still work, answers have no text, and asking for text is refused. max_tokens: the model's
    context."""

    vocab_size: int
    max_tokens: int
    tokenizer: Tokenizer | None
    template: ChatTemplate | None
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
        """cache_bytes: to remember tokens of conversations in. grammars: the node's trials; None: a
        trial server of its own, which knows no vocabulary. Raises TokenizerError and
        ChatTemplateError if a file is broken."""
        tokenizer = Tokenizer.load(model_dir)
        template = None
        if tokenizer is not None:
            template = ChatTemplate.load(model_dir, tokenizer, cache_bytes)
        trials = GrammarTrials.of(ALL_BYTES) if grammars is None else grammars
        return TextCodec(vocab_size, max_tokens, tokenizer, template, grammars=trials)

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
        """The longest text that could fit the context, in characters."""
        longest = 1 if self.tokenizer is None else self.tokenizer.longest_token
        return self.max_tokens * longest

    def chat_tokens(self) -> dict[str, int]:
        """Tokens of conversations so far, by their source; empty where there is no template."""
        if self.template is None:
            return {}
        pieces = self.template.pieces
        return {"encoded": pieces.encoded, "remembered": pieces.remembered}

    def detokenizer(self) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self.tokenizer)

    def naming_detokenizer(self) -> IncrementalDetokenizer:
        """One that writes special tokens too. Without a tokenizer all text is empty."""
        tokenizer = self.tokenizer
        return self.detokenizer() if tokenizer is None else NamingDetokenizer(tokenizer)
