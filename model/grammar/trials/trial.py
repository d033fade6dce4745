"""One grammar trial: the grammar is compiled in a forked child process, within limits kept by the
kernel.

The child has its own limits of address space, processor time and stack, and the lowest priority. If
memory is short, the kernel ends it first. It writes one verdict to its pipe and ends. If a grammar
costs too much, a signal ends the child, and this signal counts as the verdict. Thread rule: the
parent's one thread forks; the child runs on it.
"""

import gc
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from tasuki.model.grammar.compiled_grammar import check_has_texts, compiled, token_tree
from tasuki.model.grammar.grammar import Grammar, GrammarError
from tasuki.model.grammar.vocabulary import ALL_BYTES, Vocabulary
from tasuki.utils.system import die_with_parent

from .messages import Outcome, Verdict
from .queue import Source

MAX_SECONDS = 2
"""Limit of a trial's processor time, in seconds."""
MAX_ADDRESS_BYTES = 512 << 20
"""Limit of a trial's address space in bytes, the vocabulary's token tree included."""
_STACK_BYTES = 2 << 20
"""Limit of a trial's stack in bytes. Any later thread for compiling the grammar has a larger
stack."""
_LOWEST_PRIORITY = 19
_FIRST_TO_END = "1000"
"""Highest value of oom_score_adj: if memory is short, the kernel ends this process first."""
MAX_ANSWER_BYTES = 16 << 10

TOO_COSTLY = Verdict(
    Outcome.REFUSED, "takes too much time, memory or nesting to compile: simplify it"
)
_UNREADABLE = Verdict(
    Outcome.UNAVAILABLE, "the trial of the grammar gave no readable answer: ask again"
)
_OUT_OF_MEMORY = Verdict(
    Outcome.BUSY, "the trial of the grammar was ended from outside: ask again, or another node"
)

Try = Callable[["Trees", Source], Verdict]
"""Function that compiles a source and returns the verdict. It runs in the child process of a
trial."""


@dataclass(frozen=True)
class Trees:
    """Token trees from token_tree(). vocabulary: tree of the model's tokens. letters: tree of a
    small vocabulary with all bytes."""

    vocabulary: Any
    letters: Any

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "Trees":
        """Build the token trees of the model's vocabulary and of all bytes. Raises
        GrammarsUnavailable."""
        return cls(token_tree(vocabulary), token_tree(ALL_BYTES))


def tried(trees: Trees, source: Source) -> Verdict:
    """Compile the grammar source for a vocabulary of all bytes, then for the model's vocabulary.
    Return the verdict. Raises the errors of a broken installation."""
    before = _resident_bytes()
    try:
        grammar = Grammar(source.kind, source.text)
        check_has_texts(compiled(trees.letters, grammar))
        matcher = compiled(trees.vocabulary, grammar)
        held = _resident_bytes() - before
    except GrammarError as error:
        return Verdict(Outcome.REFUSED, str(error))
    del matcher
    return Verdict(Outcome.PASSED, held_bytes=max(0, held))


@dataclass
class Child:
    """The child process of a running trial, as its parent sees it. pipe: carries the child's
    verdict; reads do not block."""

    pid: int
    pipe: int
    answer: bytearray = field(default_factory=bytearray)
    is_reaped: bool = False

    def kill(self) -> None:
        """Kill the child process. Do nothing once it was reaped, because its process id may belong
        to another process."""
        if not self.is_reaped:
            os.kill(self.pid, signal.SIGKILL)

    def read(self) -> bool:
        """Read available bytes of the child's verdict. Return true if more may come. Kill the child
        if it writes more than one verdict can have."""
        while len(self.answer) <= MAX_ANSWER_BYTES:
            try:
                data = os.read(self.pipe, MAX_ANSWER_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.answer += data
        self.kill()
        return False

    def reaped(self) -> tuple[Verdict, float] | None:
        """Return the verdict and the processor seconds of the child if it has ended; else None."""
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return None
        self.is_reaped = True
        self.read()
        return _verdict_of(status, bytes(self.answer)), usage.ru_utime + usage.ru_stime

    def close(self) -> None:
        """Close the pipe to the child. REQUIRES: the child was reaped."""
        os.close(self.pipe)


def fork_trial(try_source: Try, trees: Trees, source: Source) -> Child:
    """Fork a child process to try the grammar source. REQUIRES: this process has one thread. Raises
    OSError if no process can be started."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read_end)
        os.close(write_end)
        raise
    if pid == 0:
        _run(try_source, trees, source, write_end, parent)
    os.close(write_end)
    return Child(pid, read_end)


def _run(try_source: Try, trees: Trees, source: Source, write_end: int, parent: int) -> NoReturn:
    """Run the trial in the child process, and end the process. No error returns to the parent's
    code."""
    try:
        _bound_this_process(write_end, parent)
        answer = msgspec.msgpack.encode(try_source(trees, source))
        while answer:
            answer = answer[os.write(write_end, answer) :]
        os._exit(0)
    except MemoryError:
        os.abort()
    except BaseException:
        os._exit(1)


def _bound_this_process(write_end: int, parent: int) -> None:
    gc.disable()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    die_with_parent()
    if os.getppid() != parent:
        # The parent ended before die_with_parent() took effect.
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, write_end)
    os.closerange(write_end + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_PRIORITY)
    _end_first_where_memory_is_short()
    for kind, soft, hard in (
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_FSIZE, 0, 0),
        (resource.RLIMIT_STACK, _STACK_BYTES, _STACK_BYTES),
        (resource.RLIMIT_CPU, MAX_SECONDS, MAX_SECONDS + 1),
        (resource.RLIMIT_AS, MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES),
    ):
        resource.setrlimit(kind, (soft, hard))


def _end_first_where_memory_is_short() -> None:
    try:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    try:
        os.write(score, _FIRST_TO_END.encode())
    finally:
        os.close(score)


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb") as counters:
            return int(counters.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _verdict_of(status: int, answer: bytes) -> Verdict:
    """Return the verdict of an ended child process. status: its exit status from wait4(); answer:
    the bytes written by it."""
    if os.WIFSIGNALED(status):
        ended_by_kernel = os.WTERMSIG(status) == signal.SIGKILL
        return _OUT_OF_MEMORY if ended_by_kernel else TOO_COSTLY
    if os.WEXITSTATUS(status) != 0:
        return _UNREADABLE
    try:
        return msgspec.msgpack.decode(answer, type=Verdict)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _UNREADABLE
