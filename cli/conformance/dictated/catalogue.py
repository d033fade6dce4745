"""Which dictated checks each API has. Pure."""

from tasuki.cli.conformance.apis.api import Api
from tasuki.cli.conformance.check import Check

from . import checks as dictated
from .answers import DAMAGES

_CALLS = (
    Check("a value may hold tags", dictated.held_tags),
    Check("text before a call stays text", dictated.text_before),
    Check("a call that the model left open is closed, and may be run", dictated.left_open),
    Check("a call without a required value is not to be run", dictated.without_required),
    Check("a name that is cut off is text", dictated.name_torn),
    Check("a stop string in a call does not count", dictated.stop_in_a_call),
    Check("a call between tags is closed at every length", dictated.cut_between_tags),
    Check("a call in JSON is closed at every length", dictated.cut_in_json),
)
_THOUGHTS = (
    Check("a call in a thought that is never closed", dictated.call_in_a_thought),
    Check("a thought, a text and a call", dictated.closed_thought),
)


def checks_of(api: Api) -> list[Check]:
    """None of an API without tools."""
    if api.name not in dictated.FINISHED:
        return []
    thoughts = () if api.name == "messages" else _THOUGHTS
    return [*map(dictated.damaged, DAMAGES), *_CALLS, *thoughts]
