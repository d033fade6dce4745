"""A conversation on a screen, with the count of cached tokens under each answer.

Owns one session at a time, and the sessions it was forked from. Used by one thread.
"""

from collections.abc import Iterator
from typing import TextIO

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client, Session
from tasuki.engine.messages import Usage

HELP = """/new    forget the conversation and begin another
/fork   go on with a copy of it; /back returns to where it was copied
/back   to the conversation before the last /fork
/stats  what the node's cache holds
/quit   leave (or Ctrl-D)"""


class Chat:
    """A chat on one client. Call run() once. Construction raises ClientError if the node is gone.
    run() reports a failed turn and goes on."""

    def __init__(self, client: Client, system: str, sampling: SamplingOptions, out: TextIO) -> None:
        """Open the chat. system: text of the system message at the start of every conversation;
        empty for none."""
        self._client = client
        self._system = system
        self._sampling = sampling
        self._out = out
        self._sessions: list[Session] = [client.open_session()]
        self._begun = False

    def run(self, lines: Iterator[str]) -> None:
        for line in lines:
            if line == "/quit":
                break
            try:
                self._obey(line)
            except (ClientError, ConnectionError) as error:
                self._write_line(f"the turn failed: {error}")
        for session in self._sessions:
            session.close()

    def _obey(self, line: str) -> None:
        """Run `line` as a chat command if it is one. Otherwise send it to the model."""
        match line:
            case "":
                pass
            case "/new":
                self._new()
            case "/fork":
                self._fork()
            case "/back":
                self._back()
            case "/stats":
                self._stats()
            case "/help":
                self._write_line(HELP)
            case _ if line.startswith("/"):
                self._write_line(f"{line} is no command: /help lists them")
            case _:
                self._turn(line)

    def _turn(self, line: str) -> None:
        messages = [{"role": "user", "content": line}]
        if self._system and not self._begun:
            messages.insert(0, {"role": "system", "content": self._system})
        session = self._sessions[-1]
        session.append(Prompt(messages=messages))
        self._begun = True
        stream = session.generate(**self._sampling)
        try:
            for piece in stream:
                self._out.write(piece.text)
                self._out.flush()
        except KeyboardInterrupt:
            stream.cancel()
            self._write_line("\n[cut off]")
            return
        self._write_line("\n" + summary(stream.result().usage))

    def _new(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions = [self._client.open_session()]
        self._begun = False
        self._write_line("[a new conversation]")

    def _fork(self) -> None:
        self._sessions.append(self._sessions[-1].fork())
        self._write_line(f"[fork {len(self._sessions) - 1}]")

    def _back(self) -> None:
        if len(self._sessions) == 1:
            self._write_line("there is no fork to come back from")
            return
        self._sessions.pop().close()
        self._write_line("[back]")

    def _stats(self) -> None:
        stats = self._client.stats()
        for name, pool in (("pages", stats.pages), ("slots", stats.slots)):
            held = ", ".join(f"{count} {owner}" for owner, count in sorted(pool.items()) if count)
            self._write_line(f"{name}: {held}")

    def _write_line(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()


def summary(usage: Usage) -> str:
    """Return the line shown under an answer: its token counts, cached tokens and time to first
    token."""
    cached = 0 if usage.hit is None else usage.hit.usable_tokens
    return (
        f"[{usage.prompt_tokens} prompt tokens, {cached} cached, prefilled on "
        f"{usage.prefilled_on or 'an unnamed node'}; {usage.completion_tokens} new, first after "
        f"{usage.time_to_first_token * 1000:.0f} ms]"
    )
