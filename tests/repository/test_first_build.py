"""Tests of `make`: its checks before any download, and its choice of torch."""

import ast
import io
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from scripts.first_build import logged_step, needs, requirements, torch_choice
from tests.harness.processes import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "scripts" / "first_build"
BEFORE_PYTHON = ("needs.py", "torch_choice.py", "logged_step.py")
"""Scripts for any interpreter, even one too old to build with."""


def executable(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def made(target: str, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run `make` in a folder without its environment."""
    return subprocess.run(
        ["make", target, *words],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", BEFORE_PYTHON)
def test_an_old_interpreter_can_read_what_refuses_it(name: str) -> None:
    source = (FOLDER / name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    names = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert "__future__" in names and not any("tasuki" in (name or "") for name in names)


def test_the_least_python_is_the_packages() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert wanted == ">=" + ".".join(map(str, needs.LEAST_PYTHON))


def test_an_old_python_is_refused_by_name() -> None:
    lack = needs.python_lack((3, 10, 12), "/usr/bin/python3")
    assert lack is not None and "/usr/bin/python3 is Python 3.10" in lack.what
    assert "PYTHON=python3.11" in lack.fix
    assert needs.python_lack((3, 11, 0), "python3") is None
    assert needs.python_lack((4, 0, 0), "python3") is None


def test_another_system_is_refused_by_name() -> None:
    lack = needs.system_lack("Darwin")
    assert lack is not None and "Darwin" in lack.what
    assert needs.system_lack("Linux") is None


def test_a_python_without_ensurepip_or_headers_says_what_to_install(tmp_path: Path) -> None:
    lack = needs.venv_lack({"venv": True, "ensurepip": False}, "apt-get install python3.11-venv")
    assert str(lack).endswith("(no ensurepip): apt-get install python3.11-venv")
    assert needs.venv_lack({"venv": True, "ensurepip": True}, "") is None
    lack = needs.headers_lack(tmp_path, "apt-get install python3.11-dev")
    assert lack is not None and "Python.h" in lack.what
    (tmp_path / "Python.h").touch()
    assert needs.headers_lack(tmp_path, "") is None


def test_a_compiler_is_tried_and_not_only_looked_for(tmp_path: Path) -> None:
    def of(**environment: str) -> str:
        path = {"PATH": str(tmp_path)}
        return str(needs.compiler_lack({**path, **environment}, "apt-get install g++"))

    assert of() == "no C++ compiler is there: apt-get install g++"
    assert of(CXX="g++-99 -O2").startswith("CXX names g++-99, which is not there")
    executable(tmp_path / "c++", "echo 'error: unrecognized option -std=c++20'; exit 1")
    assert "c++ takes no C++20 (error: unrecognized option -std=c++20)" in of()
    executable(tmp_path / "good", "exit 0")
    assert of(CXX=f"{tmp_path}/good") == "None"
    assert needs.compiler_lack(os.environ, "") is None, "that of this machine"


def test_a_full_disk_is_refused_with_both_numbers(tmp_path: Path) -> None:
    lack = needs.disk_lack(tmp_path, 3 * needs.GIB // 2, 5 * needs.GIB, "free some")
    assert str(lack) == f"{tmp_path} has 1.5 GiB free of 5 needed: free some"
    assert needs.disk_lack(tmp_path, 5 * needs.GIB, 5 * needs.GIB, "") is None


def test_make_stops_before_it_makes_anything(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    ran = made("install", f"VENV={venv}", CXX="no-such-compiler")
    assert ran.returncode and not venv.exists()
    lines = [line for line in ran.stderr.splitlines() if line.startswith("tasuki: ")]
    assert lines[0].startswith("tasuki: CXX names no-such-compiler, which is not there: ")
    assert lines[-1] == "tasuki: nothing was downloaded or changed"
    ran = made("demo", f"VENV={venv}", "PYTHON=python9.9")
    assert ran.returncode and "python9.9 is not there: install Python 3.11" in ran.stderr
    assert not venv.exists()


@pytest.fixture
def index() -> Iterator[str]:
    """Yield the address of an index with a page for torch."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()
        thread.join()


class _Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_torch_is_a_cpu_build_where_no_gpu_is(index: str) -> None:
    assert torch_choice.torch_arguments([], index) == ["--index-url", index]
    assert torch_choice.torch_arguments(["/dev/nvidia0"], index) == []


def test_an_index_that_cannot_be_reached_is_not_insisted_on(index: str) -> None:
    for wrong in (f"{index}/none", f"http://127.0.0.1:{free_port()}", "no address"):
        assert torch_choice.torch_arguments([], wrong) == []


def test_gpus_are_found_by_their_devices(tmp_path: Path) -> None:
    pattern = f"{tmp_path}/nvidia[0-9]*"
    (tmp_path / "nvidiactl").touch()
    found = torch_choice.gpu_names(pattern)
    (tmp_path / "nvidia0").touch()
    assert [*set(torch_choice.gpu_names(pattern)) - set(found)] == [f"{tmp_path}/nvidia0"]


def test_a_step_is_quiet_until_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "build" / "install.log"
    shell = [sys.executable, "-c"]
    assert not logged_step.main([str(log), "one", "--", *shell, "print('noise')"])
    assert "noise" not in capsys.readouterr().err
    failing = [*shell, "import sys; print('why'); sys.exit(3)"]
    assert logged_step.main([str(log), "two", "--", *failing]) == 3
    said = capsys.readouterr().err
    assert "why\n" in said and f"two failed with status 3; all of its output: {log}" in said
    assert log.read_text().index("noise") < log.read_text().index("why")


def test_a_terminal_shows_the_newest_line_of_a_step() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen, log = Terminal(), io.StringIO()
    status, last = logged_step.run(log, ["sh", "-c", "echo '[7/77] tree.cpp'"], screen)
    assert status == 0 and last == ["[7/77] tree.cpp"]
    assert "\r  [7/77] tree.cpp" in screen.getvalue() and screen.getvalue().endswith("\r")


def test_downloads_are_all_that_the_package_asks_for() -> None:
    found = requirements.requirements(ROOT / "pyproject.toml")
    assert any(line.startswith("pybind11") for line in found)
    assert any(line.startswith("torch") for line in found)
