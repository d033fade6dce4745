"""The name of what nodes of one contract keep: equal where their bytes mean the same."""

import hashlib
import json
from collections.abc import Mapping

PREFIX = "tasuki-"
_DIGITS = 16


def contract_digest(contract: Mapping[str, str]) -> str:
    """Hex. contract: what must be equal before bytes that were kept are used."""
    return hashlib.sha256(json.dumps(dict(contract), sort_keys=True).encode()).hexdigest()


def folder_of(digest: str) -> str:
    return PREFIX + digest[:_DIGITS]
