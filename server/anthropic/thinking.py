"""How thinking is asked for, shown, and taken back.

A block of thinking carries a signature, which clients send back with it. One whose text is not to
be shown carries the text there, so that the turn is the same when it comes back. It is an encoding,
no secret: a client may read it. Pure functions.
"""

import base64
import binascii
import hashlib
from dataclasses import dataclass

from tasuki.server.errors import InvalidField
from tasuki.server.fields.messages import DISPLAYS
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.replies.reasoning_effort import effort_of_budget

_CARRIED = "tasuki.text."
_SIGNED = "tasuki.sha256."


@dataclass(frozen=True)
class ThinkingChoice:
    """enabled: what the chat template is asked for; None: as it does by itself. hidden: whether a
    message has no blocks of thinking. shown: whether these have their text. effort: the template's
    word for a small budget, where the request has no other; None: as it does by itself. budget:
    tokens of thought, at most; None: as many as it likes."""

    enabled: bool | None = None
    hidden: bool = False
    shown: bool = True
    effort: str | None = None
    budget: int | None = None


def read_thinking_choice(fields: RequestFields, *, hides_unasked: bool) -> ThinkingChoice:
    """hides_unasked: a request that asks for no thinking gets none; a template that thinks all the
    same does so unseen. Raises InvalidField."""
    choice = fields.fields("thinking")
    kind, display = choice.text("type"), choice.text("display")
    if display is not None and display not in DISPLAYS:
        raise InvalidField("thinking.display", f"must be one of {', '.join(DISPLAYS)}")
    if kind in ("disabled", "between_tools"):
        return ThinkingChoice(enabled=False, hidden=hides_unasked)
    if kind not in (None, "adaptive", "enabled"):
        raise InvalidField("thinking.type", "must be adaptive, enabled or disabled")
    budget = choice.integer("budget_tokens")
    effort = effort_of_budget("thinking.budget_tokens", budget)
    if kind is None and hides_unasked:
        return ThinkingChoice(enabled=False, hidden=True)
    enabled = None if kind is None else True
    return ThinkingChoice(enabled, shown=display != "omitted", effort=effort, budget=budget)


def signature_of(thinking: str, choice: ThinkingChoice) -> str:
    if choice.shown:
        return _SIGNED + hashlib.sha256(thinking.encode(errors="replace")).hexdigest()
    return _CARRIED + base64.b64encode(thinking.encode(errors="replace")).decode()


def read_thinking(thinking: str, signature: str) -> str:
    """The text of a block that came back."""
    if thinking or not signature.startswith(_CARRIED):
        return thinking
    try:
        carried = base64.b64decode(signature.removeprefix(_CARRIED), validate=True)
        return carried.decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        # Clients that read these words leave thinking out and ask again.
        raise InvalidField(
            "signature", "is not as it was sent: invalid signature in thinking block"
        ) from error
