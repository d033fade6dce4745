"""Which tools an answer may call, or must, whichever API asks it. Immutable values, pure
functions."""

from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.model.grammar.grammar import GrammarKind
from tasuki.server.errors import InvalidField
from tasuki.server.text.text_codec import TextCodec

from .asked_grammar import AskedGrammar
from .call_grammar import CallGrammar
from .offered_tool import OfferedTool

FIELD = "tool_choice"
_TOOLS = "tools"


@dataclass(frozen=True)
class ToolChoice:
    """forced: the answer is a call, or several; name: of the tool that it calls, once, None: of
    any. allowed: the tools that may be called, of those that the model is shown; None: all."""

    forced: bool = False
    name: str | None = None
    allowed: frozenset[str] | None = None

    def among(self, tools: Sequence[OfferedTool]) -> list[OfferedTool]:
        """Those that may be called. Raises InvalidField where a name is none of theirs."""
        wanted = self.allowed if self.name is None else frozenset({self.name})
        if wanted is None:
            return list(tools)
        unknown = sorted(wanted - {tool.name for tool in tools})
        if unknown:
            raise InvalidField(FIELD, f"names {unknown[0]!r:.80}, which is not among the tools")
        return [tool for tool in tools if tool.name in wanted]


def answer_grammar(
    choice: ToolChoice,
    tools: Sequence[OfferedTool],
    asked: AskedGrammar | None,
    codec: TextCodec,
    *,
    parallel: bool,
) -> AskedGrammar | None:
    """What the whole answer follows. tools: those that the model is shown. asked: what its text has
    to follow, which calls stand beside where the model may choose and the text is JSON; any other
    kind is the whole answer. parallel: more than one call may be made. Raises InvalidField."""
    if choice.forced and not tools:
        raise InvalidField(FIELD, "forces a call, and there are no tools")
    called = choice.among(tools)
    if choice.forced:
        many = parallel and choice.name is None
        return _calls(FIELD, called, codec, parallel=many).forced()
    if not called:
        return asked
    if asked is not None:
        if asked.kind is not GrammarKind.JSON_SCHEMA:
            return asked
        return _calls(asked.field, called, codec, parallel=parallel).or_else(asked)
    if choice.allowed is None and not any(tool.strict or tool.input for tool in called):
        return None
    return _calls(_TOOLS, called, codec, parallel=parallel).among_text()


def _calls(
    field: str, tools: Sequence[OfferedTool], codec: TextCodec, *, parallel: bool
) -> CallGrammar:
    template = codec.require_template()
    return CallGrammar(field, tools, in_tags=template.calls_in_tags, many=parallel)
