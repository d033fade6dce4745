"""Which decode node alone was handed over what stands behind a beginning: whoever goes on there has
more with that node than here.

Owns names of the latest MOST beginnings. A hint: one that is wrong costs a message. Thread rule:
the engine loop's. Invariant: a beginning of more prompts than one has no such node: others may
begin there who have nothing with it."""

from collections import OrderedDict
from hashlib import blake2b

from tasuki.engine.messages import Tokens

MOST = 1 << 14
_NAME_BYTES = 16


class SoleReceivers:
    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, str | None] = OrderedDict()
        """None: of several prompts."""

    def note(self, salt: bytes, tokens: Tokens, peer: str) -> None:
        """A prompt with these tokens at its beginning, behind which its state stands, was handed
        over to the decode node `peer`."""
        name = _name(salt, tokens)
        self._peers[name] = None if name in self._peers else peer
        self._peers.move_to_end(name)
        if len(self._peers) > MOST:
            self._peers.popitem(last=False)

    def of(self, salt: bytes, tokens: Tokens) -> str | None:
        return self._peers.get(_name(salt, tokens))


def _name(salt: bytes, tokens: Tokens) -> bytes:
    key = blake2b(salt).digest()
    return blake2b(tokens.tobytes(), key=key, digest_size=_NAME_BYTES).digest()
