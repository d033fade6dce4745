"""A conversation on a screen, with the count of cached tokens under each answer.

Owns one session at a time, the sessions it was forked from, and the pictures of the next message.
Used by one thread.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client, Session
from tasuki.engine.messages import PicturesReport, Usage
from tasuki.model.vision.picture_file import PictureBounds

HELP = """/image FILE  show a picture with the next message; several times for several
/new    forget the conversation and begin another
/fork   go on with a copy of it; /back returns to where it was copied
/back   to the conversation before the last /fork
/stats  what the node's cache holds
/quit   leave (or Ctrl-D)"""
_IMAGE = "/image"


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
        self._pictures: list[bytes] = []
        """Files for the next message."""

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
            case _ if line.partition(" ")[0] == _IMAGE:
                self._attach(line.removeprefix(_IMAGE).strip())
            case _ if line.startswith("/"):
                self._write_line(f"{line} is no command: /help lists them")
            case _:
                self._turn(line)

    def _attach(self, name: str) -> None:
        """Read a picture's file for the next message. name: its path; `~` is the user's home."""
        path = Path(name).expanduser()
        most = PictureBounds().most_bytes
        if not name or not path.is_file():
            self._write_line(f"{name or 'no name'} is no file: /image FILE")
            return
        try:
            with path.open("rb") as file:
                content = file.read(most + 1)
        except OSError as error:
            self._write_line(f"{name} cannot be read: {error}")
            return
        if len(content) > most:
            self._write_line(f"{name} has more than {most} bytes: shrink it")
            return
        self._pictures.append(content)
        self._write_line(f"[picture {len(self._pictures)} for the next message]")

    def _turn(self, line: str) -> None:
        message: dict[str, object] = {"role": "user", "content": line}
        if self._pictures:
            message = {"role": "user", "parts": [*self._pictures, line]}
            # A refused picture would be refused again.
            self._pictures = []
        messages = [message]
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
    pictures = "" if usage.pictures is None else _pictures(usage.pictures)
    return (
        f"[{usage.prompt_tokens} prompt tokens{pictures}, {cached} cached, prefilled on "
        f"{usage.prefilled_on or 'an unnamed node'}; {usage.completion_tokens} new, first after "
        f"{usage.time_to_first_token * 1000:.0f} ms]"
    )


def _pictures(report: PicturesReport) -> str:
    """Return the tokens of a prompt's pictures, and the number of pictures by outcome."""
    outcomes = Counter(picture.outcome for picture in report.each)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    tokens = report.image_tokens + report.video_tokens
    return f" ({tokens} of pictures: {counts})"
