"""Replacements for the compiler of grammars, with the effects of harmful sources on a grammar
trial's child process.

No source harming a library is kept here. Each function is a Try of
tasuki.model.grammar.trials.trial. `obeys` chooses by the source's text.
"""

import ctypes
import os
import time

from tasuki.model.grammar.trials.messages import Outcome, Verdict
from tasuki.model.grammar.trials.queue import Source
from tasuki.model.grammar.trials.trial import Trees, tried

OBEYS = "tests.harness.trial_stand_ins:obeys"


def obeys(trees: Trees, source: Source) -> Verdict:
    """Do the action named by the first word of the source text: `sleep`, `spin`, `allocate`,
    `crash`, `abort`, `exit`, `garbage`, `flood`, `pass` or `refuse`. Without such a word, compile
    the text."""
    match source.text.split(" ")[0]:
        case "sleep":
            time.sleep(3600)
        case "spin":
            while True:
                pass
        case "allocate":
            held = []
            while True:
                held.append(bytearray(16 << 20))
        case "crash":
            # A stack overflow ends a process in this way.
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "garbage":
            _answer(b"\xc1 no verdict")
        case "flood":
            while True:
                _answer(b"x" * 4096, ends=False)
        case "pass":
            return Verdict(Outcome.PASSED)
        case "refuse":
            return Verdict(Outcome.REFUSED, "the stand-in refuses it")
    return tried(trees, source)


def _answer(data: bytes, *, ends: bool = True) -> None:
    """Write bytes to the pipe between the child process and its parent."""
    (pipe,) = (
        int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and _is_pipe(name)
    )
    os.write(pipe, data)
    if ends:
        os._exit(0)


def _is_pipe(name: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{name}").startswith("pipe:")
    except OSError:
        return False
