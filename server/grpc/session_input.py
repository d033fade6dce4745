"""The tokens that one Append adds to a session's log, read from its message.

Pure functions of the message, the log's tail and the checkpoint's codec; any thread.
"""

from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import InvalidRequest
from tasuki.server.sessions.session_store import Tail
from tasuki.server.sessions.turns import SessionInput
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.text_codec import TextCodec

from .request_reader import read_messages, read_plain_input, read_token_ids


def read_session_input(
    request: pb.SessionAppendRequest, tail: Tail, salt: bytes, codec: TextCodec
) -> SessionInput:
    """tail: the log's before. salt: of the session. Raises InvalidRequest, PromptTooLong."""
    match request.WhichOneof("input"):
        case "messages":
            return _messages(request.messages, tail, salt, ChatRenderer(codec))
        case "answer":
            # The log is then as after a turn that was generated here.
            tokens = read_token_ids("answer", request.answer.ids, codec)
            if not len(tokens):
                raise InvalidRequest("answer is empty: leave out a turn that answered nothing")
            return SessionInput(Tail.ANSWER, tokens)
        case _:
            tokens = read_plain_input(request, codec)
            if not len(tokens):
                raise InvalidRequest("input is empty: send text, token_ids or messages")
            return SessionInput(Tail.TOKENS, tokens)


def _messages(
    messages: pb.Messages, tail: Tail, salt: bytes, renderer: ChatRenderer
) -> SessionInput:
    read = read_messages(messages)
    if tail is Tail.EMPTY:
        rendered = renderer.conversation(read, open_answer=False, salt=salt)
    else:
        rendered = renderer.continuation(read, salt=salt)
    closing = tuple(renderer.answer_closing().tolist()) if tail is Tail.ANSWER else ()
    return SessionInput(Tail.MESSAGES, rendered.tokens, rendered.marks, closing)
