"""A real `tasuki serve` for a test suite running in a separate environment.

The runner sets TASUKI_PROGRAM to the command, and SUITES_MODELS to the folder of the models.
"""

import json
import os
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import IO

READY_SECONDS = 180.0
END_SECONDS = 60.0


class NodeFailed(RuntimeError):
    """A node ended, or printed nothing, before it was ready."""


def model_folder(name: str) -> Path:
    """Return the folder of model `name`. REQUIRES: the runner started this process."""
    return Path(os.environ["SUITES_MODELS"]) / name


def suite_node(model: str, flags: list[str]) -> "ServedNode":
    """Start a node with the model. Raises NodeFailed. REQUIRES: the condition of model_folder."""
    return ServedNode(Path(os.environ["TASUKI_PROGRAM"]), model_folder(model), flags)


class ServedNode:
    """A running node, until `stop`. Thread rule: one thread."""

    def __init__(self, program: Path, model: Path, flags: list[str]) -> None:
        """Start the node and wait until it is ready. model: a checkpoint's folder.

        Raises NodeFailed with the last lines of its log.
        """
        command = [str(program), "serve", "--model", str(model)]
        command += ["--bind", "127.0.0.1:0", "--http-bind", "127.0.0.1:0", "--exit-with-parent"]
        self._words: deque[str] = deque(maxlen=40)
        self._process = subprocess.Popen(
            [*command, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        self._listen(self._process.stderr)
        ready: list[str] = []
        reader = threading.Thread(target=lambda: ready.append(self._ready_line()), daemon=True)
        reader.start()
        reader.join(READY_SECONDS)
        if not ready or not ready[0]:
            self.stop()
            raise NodeFailed("the node did not start: " + " ".join(self._words))
        self._listen(self._process.stdout)
        self.url = f"http://{json.loads(ready[0])['http']}"

    def stop(self) -> None:
        """End the node; kill it if it takes longer than END_SECONDS."""
        self._process.terminate()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready_line(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith('{"ready"'):
                return line
        return ""

    def _listen(self, stream: IO[str]) -> None:
        threading.Thread(target=lambda: self._words.extend(stream), daemon=True).start()
