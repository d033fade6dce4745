"""Names of prompts' blocks, for recordings: equal names mean equal prefixes, and reveal nothing
else.

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
        """One name for each page of 64 tokens, and one for the rest of the prompt."""
        _, *names = prefix_hashes(submit.prompt, self._secret + submit.salt)
        return [name[:_NAME_BYTES].hex() for name in names]
