"""How hard a model shall think, in a word of its own template's.

APIs have scales of their own, and their clients send a word of them unasked; templates refuse words
that they do not know. Pure; any thread.
"""

from tasuki.server.errors import InvalidField
from tasuki.server.text.text_codec import TextCodec

EFFORT = "reasoning_effort"
"""The template's variable."""

_NEAREST = {
    "minimal": ("low",),
    "high": ("xhigh",),
    "xhigh": ("high",),
    "max": ("xhigh", "high"),
}


# At most so many tokens of thought.
_SMALL_BUDGETS = ((1024, "low"), (2048, "medium"))


def effort_of_budget(field: str, tokens: int | None) -> str | None:
    """Return the word for a small budget of tokens: a model that knows it ends its thought sooner
    by itself. None: no word, as for a larger budget or none. Raises InvalidField."""
    if tokens is None:
        return None
    if tokens < 1:
        raise InvalidField(field, f"must be at least 1, not {tokens}")
    return next((word for most, word in _SMALL_BUDGETS if tokens <= most), None)


def effort_of_template(codec: TextCodec, field: str, effort: str) -> str:
    """The word itself, or the nearest that the template takes: a template that does not ask for an
    effort takes every word. Raises InvalidField."""
    template = codec.require_template()
    for word in (effort, *_NEAREST.get(effort, ())):
        if template.takes({EFFORT: word}):
            return word
    raise InvalidField(field, f"{effort!r:.40} is none that this model's chat template takes")
