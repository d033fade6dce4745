"""A filter of system calls (seccomp) for a process that only computes: memory, one pipe, its end.

Any call outside the list fails with EPERM: files, sockets, processes, signals to others. The rules
are data for the kernel's own machine, so no library is needed. Limits of resources alone would not
hold for root, whom the kernel lets fork in spite of them.

One process, one thread; the filter is never taken back.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_SET_NO_NEW_PRIVILEGES = 38
_SET_SECCOMP = 22
_MODE_FILTER = 2
"""PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP and SECCOMP_MODE_FILTER of prctl(2)."""

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
"""Instructions of the kernel's filter: load 32 bits of the call, compare, return."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 40
"""Offsets in struct seccomp_data; the low halves of arguments."""
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.EPERM
_EMPTY_PATH = 0x1000
"""AT_EMPTY_PATH: a descriptor, no file's name."""


@dataclass(frozen=True)
class Machine:
    """Numbers of system calls of one kind of processor. code: AUDIT_ARCH of it. allowed: calls with
    any arguments. signal: tgkill, allowed for the own process. status: newfstatat, allowed for
    descriptors."""

    code: int
    allowed: Sequence[int]
    signal: int
    status: int


_MACHINES: Mapping[str, Machine] = {
    # read, write, close, fstat, lseek, mmap, mprotect, munmap, brk, rt_sigaction, rt_sigprocmask,
    # rt_sigreturn, mremap, madvise, sched_yield, nanosleep, getpid, exit, getrusage, times,
    # sigaltstack, prctl, gettid, futex, clock_gettime, clock_nanosleep, exit_group,
    # set_robust_list, getrandom, membarrier, rseq
    "x86_64": Machine(
        0xC000003E,
        (
            *(0, 1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 24, 35, 39, 60, 98, 100),
            *(131, 157, 186, 202, 228, 230, 231, 273, 318, 324, 334),
        ),
        234,
        262,
    ),
    "aarch64": Machine(
        0xC00000B7,
        (
            *(63, 64, 57, 80, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 124, 101, 172, 93),
            *(165, 153, 132, 167, 178, 98, 113, 115, 94, 99, 278, 283, 293),
        ),
        131,
        79,
    ),
}


def forbid_calls() -> bool:
    """Forbid this process every system call but those of computing, and new privileges. Return
    False if the kernel or the processor has no such filter; new privileges are forbidden still."""
    control = ctypes.CDLL(None, use_errno=True).prctl
    control.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    is_set = control(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
    machine = _MACHINES.get(os.uname().machine)
    if machine is None or not is_set or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    rules = filter_rules(machine, os.getpid())
    code = ctypes.create_string_buffer(b"".join(rules), 8 * len(rules))
    # struct sock_fprog: a count, padding, an address.
    program = struct.pack("HxxxxxxQ", len(rules), ctypes.addressof(code))
    held = ctypes.create_string_buffer(program, len(program))
    return bool(control(_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(held), 0, 0) == 0)


def filter_rules(machine: Machine, process: int) -> list[bytes]:
    """Return the filter's instructions. process: the own id."""
    rules = [
        _rule(_LOAD, _ARCHITECTURE),
        _rule(_EQUAL, machine.code, 1, 0),
        _rule(_RETURN, _FAIL),
        _rule(_LOAD, _NUMBER),
    ]
    for number in machine.allowed:
        rules += [_rule(_EQUAL, number, 0, 1), _rule(_RETURN, _ALLOW)]
    for number, offset, value in (
        (machine.signal, _FIRST_ARGUMENT, process),
        (machine.status, _FOURTH_ARGUMENT, _EMPTY_PATH),
    ):
        rules += [
            _rule(_EQUAL, number, 0, 4),
            _rule(_LOAD, offset),
            _rule(_EQUAL, value, 0, 1),
            _rule(_RETURN, _ALLOW),
            _rule(_RETURN, _FAIL),
        ]
    return [*rules, _rule(_RETURN, _FAIL)]


def _rule(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)
