"""`python -m scripts.first_build.wheel_use dist/tasuki-*.whl`: a test of a built wheel.

Installs it into an empty environment with its requirements, and starts a node from there, in a
folder without sources. The model inside the wheel answers twice, and the second answer's prompt
must be cached. Exit status 1 if any of it fails. Owns the environment and the node.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.first_build.torch_choice import gpu_names, torch_arguments
from tests.harness.processes import free_port

ROOT = Path(__file__).parents[2]
INSTALL_SECONDS = 1200.0
READY_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 120.0, 120.0, 60.0
LEAST_CACHED = 200
"""Least number of cached prompt tokens of the second answer."""
QUESTION = ROOT / "examples" / "letters.json"
_FIND_MODEL = "from tasuki.model.named_checkpoints import embedded_model; print(embedded_model())"


class WheelUnfit(Exception):
    """An installed wheel fails one of the checks."""


def install(wheel: Path, venv: Path) -> None:
    """Install the wheel into a new environment in `venv`. Raises WheelUnfit,
    subprocess.TimeoutExpired."""
    _run([sys.executable, "-m", "venv", str(venv)])
    pip = str(venv / "bin" / "pip")
    constraints = ("-c", str(ROOT / "constraints.txt"))
    quiet = ("--progress-bar", "off", "-q", "--disable-pip-version-check")
    _run([pip, "install", *quiet, *constraints, "torch", *torch_arguments(gpu_names())])
    _run([pip, "install", *quiet, *constraints, str(wheel)])
    _run([pip, "check"])


def installed_model(venv: Path, folder: Path) -> Path:
    """Return the path of the model inside the installed wheel. Raises WheelUnfit if it is outside
    the environment."""
    command = [str(venv / "bin" / "python"), "-c", _FIND_MODEL]
    found = Path(_run(command, cwd=folder).strip())
    if venv.resolve() not in found.resolve().parents:
        raise WheelUnfit(f"the model is at {found}, which is no part of {venv}")
    return found


@contextmanager
def node(venv: Path, model: Path, folder: Path) -> Iterator[str]:
    """Run `tasuki serve` from environment `venv`; yield its HTTP address. Raises WheelUnfit."""
    port = free_port()
    log = folder / "node.log"
    command = [str(venv / "bin" / "tasuki"), "serve", str(model), "--port", str(port)]
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _await_ready(process, port, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if process.returncode:
        raise WheelUnfit(f"the node ended with status {process.returncode}: {log.read_text()}")


def usage_of_answer(address: str) -> Mapping[str, Any]:
    """Send the prompt QUESTION and return the answer's usage. Raises WheelUnfit without text."""
    request = urllib.request.Request(
        f"{address}/v1/chat/completions",
        QUESTION.read_bytes(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
        body = json.load(answer)
    if not body["choices"][0]["message"]["content"].strip():
        raise WheelUnfit(f"the answer has no text: {body}")
    usage: Mapping[str, Any] = body["usage"]
    return usage


def cached(usage: Mapping[str, Any]) -> int:
    return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))


def main(arguments: Sequence[str]) -> int:
    """Test a wheel, and return the exit status 0. arguments: path of the wheel. Raises
    WheelUnfit."""
    (wheel,) = arguments
    with tempfile.TemporaryDirectory(prefix="tasuki-wheel-") as name:
        folder = Path(name)
        venv = folder / "venv"
        started = time.monotonic()
        install(Path(wheel).absolute(), venv)
        print(f"{wheel}: installed in {time.monotonic() - started:.0f} s")
        model = installed_model(venv, folder)
        before = os.times()
        with node(venv, model, folder) as address:
            first, second = usage_of_answer(address), usage_of_answer(address)
        after = os.times()
    if cached(second) < LEAST_CACHED:
        raise WheelUnfit(f"the second answer's prompt was not cached: {second}")
    spent = after.children_user + after.children_system
    spent -= before.children_user + before.children_system
    print(
        f"{wheel}: a node answered twice; {cached(first)}, then {cached(second)} of "
        f"{second['prompt_tokens']} prompt tokens were cached; {spent:.1f} s of CPU"
    )
    return 0


def _await_ready(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5.0):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise WheelUnfit(f"the node was not ready within {READY_SECONDS:.0f} s: {log.read_text()}")


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    # Without PYTHONPATH, so it cannot import another tasuki.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        command, cwd=cwd, env=clean, timeout=INSTALL_SECONDS, capture_output=True, text=True
    )
    if ran.returncode:
        raise WheelUnfit(
            f"{' '.join(command)} ended with {ran.returncode}: {ran.stdout}{ran.stderr}"
        )
    return ran.stdout


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except WheelUnfit as unfit:
        sys.exit(f"wheel: {unfit}")
