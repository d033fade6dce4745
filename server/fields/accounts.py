"""Fields about accounts, with their APIs' bounds: the schemas of what check_account_fields() of
server/openai/request_fields.py reads. Pure."""

from .shapes import STRING, Fields, or_null, text

# OpenAI documents the bounds of `metadata` and `safety_identifier`. Its service refuses a longer
# `user` and a longer `prompt_cache_key` too.
MAX_ID = 64
MAX_PAIRS = 16
MAX_NAME = 64
MAX_VALUE = 512
"""Characters, but for the pairs."""

IDS = ("user", "safety_identifier", "prompt_cache_key")
ACCOUNTS: Fields = {
    **{name: text(MAX_ID) for name in IDS},
    "metadata": or_null(
        {
            "type": "object",
            "maxProperties": MAX_PAIRS,
            "propertyNames": {"maxLength": MAX_NAME},
            "additionalProperties": {**STRING, "maxLength": MAX_VALUE},
        }
    ),
}
