"""What an answer must follow, by its source, as a request and a hand-over carry it.

Pure values. Invariant: every Grammar is short enough to be tried. Its trial (trials/) shows whether
its source has a meaning.
"""

from dataclasses import dataclass
from enum import StrEnum

MAX_SOURCE_BYTES = 256 << 10
MAX_GAP = 16


class GrammarKind(StrEnum):
    """JSON_SCHEMA: the text of a schema. REGEX: of the whole answer, without look-around. LARK: in
    llguidance's dialect of Lark, or in GBNF, whose rules have ::=."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


class GrammarError(ValueError):
    """The grammar cannot be compiled, or only at a cost that no request may have; the message has
    neither its source nor the field's name."""


class GrammarsUnavailable(RuntimeError):
    """No grammar can be compiled in this process; the message names the cause and the mend."""


class GrammarsBusy(RuntimeError):
    """The grammar was not tried in time. The same request may be sent again."""


@dataclass(frozen=True)
class Grammar:
    """closing: the token behind which the grammar begins to hold, at the end of the model's
    thinking; None: it holds from the first token. opening: the token by which the answer may begin
    that thinking; None, with a closing: the prompt has begun it. gap: tokens that may stand between
    the closing and the grammar's text, all of them or none.

    Raises ValueError that begins with `grammar` where no hand-over could carry it."""

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
        """Ids that it names."""
        ends = (token for token in (self.closing, self.opening) if token is not None)
        return (*ends, *self.gap)
