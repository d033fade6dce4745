"""Runs a command, keeps its output in a file, and shows it if the command fails.

    python3 -m scripts.first_build.logged_step build/install.log "torch" -- pip install torch

Meanwhile a terminal shows the newest line of the output. The file keeps the output of earlier
steps.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

SHOWN_LINES = 40
_SECONDS_A_LINE = 0.2


def run(log: IO[str], command: Sequence[str], screen: IO[str]) -> tuple[int, list[str]]:
    """Run the command with its output in the file `log`. Returns its exit status and its last
    lines."""
    log.write(f"$ {' '.join(map(shlex.quote, command))}\n")
    last: deque[str] = deque(maxlen=SHOWN_LINES)
    live, shown = screen.isatty(), 0.0
    width = shutil.get_terminal_size().columns - 1
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            last.append(line.rstrip())
            if live and last[-1] and time.monotonic() - shown > _SECONDS_A_LINE:
                shown = time.monotonic()
                screen.write(f"\r{'  ' + last[-1].strip():<{width}.{width}}")
                screen.flush()
    if live and shown:
        screen.write(f"\r{'':{width}}\r")
    return process.returncode, list(last)


def main(arguments: Sequence[str]) -> int:
    """Run one step and return the command's status. arguments: the log file, the step's title,
    `--`, the command."""
    path, title, mark, *command = arguments
    assert mark == "--" and command, "usage: logged_step.py LOG TITLE -- COMMAND"
    screen = sys.stderr
    screen.write(f"tasuki: {title}\n")
    started = time.monotonic()
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", buffering=1, encoding="utf-8", errors="replace") as log:
        status, last = run(log, command, screen)
    if status:
        screen.write("\n".join([*last, ""]))
        screen.write(f"tasuki: {title} failed with status {status}; all of its output: {path}\n")
    else:
        screen.write(f"tasuki: {title}: {time.monotonic() - started:.0f} s\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
