"""Prompts as names of their blocks, for recordings: equal names mean equal prefixes, and nothing
else can be learnt from them.

Owns a secret of this process, so that nobody can check a guess of a prompt against a name. Names of
two salts never agree.
"""

import secrets

from tasuki.engine.messages import Submit
from tasuki.pycache._cpp_cache import prefix_hashes

_NAME_BYTES = 8


class PromptBlocks:
    def __init__(self) -> None:
        self._secret = secrets.token_bytes(16)

    def names(self, submit: Submit) -> list[str]:
        """One a page of 64 tokens, the last for what is left of the prompt."""
        _, *names = prefix_hashes(submit.prompt, self._secret + submit.salt)
        return [name[:_NAME_BYTES].hex() for name in names]
