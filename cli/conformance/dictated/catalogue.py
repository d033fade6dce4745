"""Which dictated checks each API has. Pure."""

from tasuki.cli.conformance.apis.api import Api
from tasuki.cli.conformance.check import Check

from . import answers, checks

_CALLS = (
    Check("a value may hold tags", checks.held_tags),
    Check("text before a call stays text", checks.text_before),
    Check("a call that the model left open is closed, and may be run", checks.left_open),
    Check("a call without a required value is not to be run", checks.without_required),
    Check("a name that is cut off is text", checks.name_torn),
    Check("a stop string in a call does not count", checks.stop_in_a_call),
    Check("a call between tags is closed at every length", checks.cut_between_tags),
    Check("a call in JSON is closed at every length", checks.cut_in_json),
)
_THOUGHTS = (
    Check("a call in a thought that is never closed", checks.call_in_a_thought),
    Check("a thought, a text and a call", checks.closed_thought),
)


def checks_of(api: Api) -> list[Check]:
    """None of an API without tools."""
    if api.name not in checks.FINISHED:
        return []
    thoughts = () if api.name == "messages" else _THOUGHTS
    return [*map(checks.damaged, answers.DAMAGES), *_CALLS, *thoughts]
