"""A tool that an answer may call, whichever API offers it. Immutable values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .asked_grammar import AskedGrammar


@dataclass(frozen=True)
class OfferedTool:
    """definition: in OpenAI's shape, as the template is shown it. strict: every call's arguments
    follow its schema, whether or not a call is forced. input: what the one parameter of a tool of
    free text follows."""

    definition: Mapping[str, Any]
    strict: bool = False
    input: AskedGrammar | None = None

    @property
    def function(self) -> Mapping[str, Any]:
        function: Mapping[str, Any] = self.definition["function"]
        return function

    @property
    def name(self) -> str:
        return str(self.function["name"])
