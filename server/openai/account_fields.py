"""Fields of a request that name its user, its conversation and its purpose, within OpenAI's bounds.

Pure functions; any thread. OpenAI documents 16 pairs of 64 and 512 characters for `metadata`, and
64 characters for `safety_identifier`; its service refuses a longer `user` and a longer
`prompt_cache_key` too.
"""

from tasuki.server.errors import InvalidField

from .request_fields import RequestFields

MAX_ID = 64
MAX_PAIRS = 16
MAX_NAME = 64
MAX_VALUE = 512
"""Characters, but for the pairs."""

_IDS = ("user", "safety_identifier", "prompt_cache_key")


def check_account_fields(fields: RequestFields) -> None:
    """Raise InvalidField where a field that the request has is beyond its bounds."""
    for name in _IDS:
        fields.short_text(name, MAX_ID)
    pairs = fields.items_by_name("metadata")
    if len(pairs) > MAX_PAIRS:
        raise InvalidField("metadata", f"has {len(pairs)} pairs: send at most {MAX_PAIRS}")
    for name, value in pairs.items():
        if len(name) > MAX_NAME:
            raise InvalidField(
                "metadata", f"has a name of {len(name)} characters: send at most {MAX_NAME}"
            )
        if not isinstance(value, str):
            raise InvalidField(f"metadata.{name}", "must be a string")
        if len(value) > MAX_VALUE:
            raise InvalidField(
                f"metadata.{name}", f"has {len(value)} characters: send at most {MAX_VALUE}"
            )
