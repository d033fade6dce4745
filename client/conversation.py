"""The client's copy of a session, from which it can be built again on any node.

Holds appended pieces and answers, in order. One thread. Invariant: it holds only what the server
confirmed, so that a rebuilt session equals the lost one exactly.
"""

from collections.abc import Iterator, Sequence

from tasuki.proto import inference_pb2 as pb

from .prompt import Prompt


class Conversation:
    def __init__(self, cache_salt: bytes, pieces: Sequence[pb.SessionAppendRequest] = ()) -> None:
        self.cache_salt = cache_salt
        self._pieces = [*pieces]

    def appended(self, prompt: Prompt) -> None:
        self._pieces.append(pb.SessionAppendRequest(**prompt.fields()))

    def answered(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            self._pieces.append(pb.SessionAppendRequest(answer=pb.TokenIds(ids=token_ids)))

    def fork(self) -> "Conversation":
        return Conversation(self.cache_salt, self._pieces)

    def replay(self, session_id: str) -> Iterator[pb.SessionAppendRequest]:
        """The appends that build it again in an empty session."""
        for piece in self._pieces:
            request = pb.SessionAppendRequest(session_id=session_id)
            request.MergeFrom(piece)
            yield request
