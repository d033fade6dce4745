"""The grammar of an answer by its source, as requests and hand-overs carry it.

Pure values. Invariant: every Grammar is short enough to be tried. Its trial (trials/) shows if its
source has a meaning.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_SOURCE_BYTES = 256 << 10
MAX_GAP = 16


class GrammarKind(StrEnum):
    """Kind of a source.

    JSON_SCHEMA: the text of a schema. REGEX: a pattern for the whole answer, without look-around.
    LARK: in llguidance's dialect of Lark, or in GBNF, recognised by rules with ::=.
    """

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class GrammarError(ValueError):
    """The grammar cannot be compiled, or only at a cost above a request's bounds. The message has
    neither its source nor the field's name."""


class GrammarsUnavailable(RuntimeError):
    """No grammar can be compiled in this process. The message names the cause and the fix."""


class GrammarsBusy(RuntimeError):
    """The grammar was not tried in time. The same request may be sent again."""


@dataclass(frozen=True)
class Grammar:
    """A grammar and the position of its text in the answer.

    closing: the token at the end of the model's thinking. The grammar applies after it; None: it
    applies from the first token. opening: optional first token of this thinking. None, with a
    closing: the prompt has begun it. gap: optional tokens between the closing and the grammar's
    text, all of them or none.

    Raises ValueError if no hand-over could carry it; the message begins with `grammar`.
    """

    kind: GrammarKind
    source: str
    closing: int | None = None
    opening: int | None = None
    gap: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.source.encode(errors="surrogatepass"))
        if size > MAX_SOURCE_BYTES:
            raise ValueError(f"grammar must have at most {MAX_SOURCE_BYTES} bytes, not {size}")
        if len(self.gap) > MAX_GAP:
            raise ValueError(f"grammar must have a gap of at most {MAX_GAP} tokens")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the token ids in its fields."""
        ends = (token for token in (self.closing, self.opening) if token is not None)
        return (*ends, *self.gap)
