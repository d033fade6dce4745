"""`tasuki` run in this process: how it ends, and the one line that an error is."""

from collections.abc import Sequence

import pytest

from tasuki.cli import main as cli


def exit_status(argv: Sequence[str]) -> int:
    """Of `tasuki ARGV`, whether it returns or exits."""
    try:
        return cli.main(list(argv))
    except SystemExit as stopped:
        return int(str(stopped.code))


def error_line(captured: pytest.CaptureFixture[str]) -> str:
    """All that was written since it was read last: one line on stderr."""
    out, err = captured.readouterr()
    assert out == "" and err.endswith("\n") and err.count("\n") == 1, err
    return err
