"""`tasuki` run in this process: how it ends, and the one line that an error is."""

import re
from collections.abc import Sequence

import pytest

from tasuki.cli import main as cli

_RECORD = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ INFO ")


def exit_status(argv: Sequence[str]) -> int:
    """Of `tasuki ARGV`, whether it returns or exits."""
    try:
        return cli.main(list(argv))
    except SystemExit as stopped:
        return int(str(stopped.code))


def error_line(captured: pytest.CaptureFixture[str]) -> str:
    """All that was written since it was read last, but for records of the log: one line on
    stderr."""
    out, err = captured.readouterr()
    lines = [line for line in err.splitlines() if not _RECORD.match(line)]
    assert out == "" and err.endswith("\n") and len(lines) == 1, err
    return lines[0] + "\n"
