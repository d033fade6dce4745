"""What a check found, and the mend."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """mend: what to do; empty where there is nothing to do."""

    subject: str
    verdict: Verdict
    found: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict.value:<8} {self.subject:<12} {self.found}"
        return line + (f"\n{'':<22}-> {self.mend}" if self.mend else "")


def ok(subject: str, found: str) -> Finding:
    return Finding(subject, Verdict.OK, found)


def warning(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.WARNING, found, mend)


def failure(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.FAILURE, found, mend)
