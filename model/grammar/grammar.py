"""The grammar of an answer as its source, in the form of requests and hand-overs.

Pure values. Invariant: every Grammar is short enough for a trial compilation. The trial (trials/)
shows if the source is valid.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_SOURCE_BYTES = 256 << 10
MAX_GAP = 16


class GrammarKind(StrEnum):
    """Kind of a grammar's source.

    JSON_SCHEMA: the text of a JSON schema. REGEX: a pattern for the whole answer, without
    look-around. LARK: a grammar in llguidance's dialect of Lark, or in GBNF, recognised by rules
    with ::=.
    """

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class GrammarError(ValueError):
    """Error: the grammar cannot be compiled, or only at a cost above a request's bounds. The
    message has neither its source nor the request field's name."""


class GrammarsUnavailable(RuntimeError):
    """Error: no grammar can be compiled here. The message names the cause and the fix."""


class GrammarsBusy(RuntimeError):
    """Error: the grammar's trial did not end in time. The same request may be sent again."""


@dataclass(frozen=True)
class Grammar:
    """A grammar for an answer, and the place of its text in the answer.

    closing: the token at the end of the model's thinking. The grammar applies after it; None: it
    applies from the first token. opening: token with which the answer may begin its thinking; None,
    with a closing: the thinking began in the prompt. gap: tokens allowed between the closing and
    the grammar's text, all of them or none.

    Raises ValueError if the grammar is too large for a hand-over; the message begins with
    `grammar`.
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
        """Return all token ids in the grammar's fields: closing, opening and gap."""
        ends = (token for token in (self.closing, self.opening) if token is not None)
        return (*ends, *self.gap)
