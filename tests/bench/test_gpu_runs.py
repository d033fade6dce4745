"""Tests of `python -m scripts.gpu`: its planned runs can be run, and a run reported as over is
over."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from scripts.gpu.__main__ import main
from scripts.gpu.plan import Plan
from scripts.gpu.run import Outcome, Run, Verdict, done, outcomes_of
from tasuki.bench.load.serving_config import ServingConfig
from tasuki.cli import main as cli
from tasuki.utils.flags import parse_config
from tests.harness.processes import command_of
from tests.harness.waiting import until

RUNS = Plan(Path("results"), "abc", 4096).runs()
FIGURES = [run for run in RUNS if "bench" in run.argv]
ROOT = Path(__file__).resolve().parents[2]


def test_its_tests_are_all_that_there_are_for_a_gpu() -> None:
    planned = {word for run in RUNS for word in run.argv if word.startswith("tests/gpu/")}
    assert planned == {f"tests/gpu/{file.name}" for file in (ROOT / "tests/gpu").glob("test_*.py")}
    assert len({run.name for run in RUNS}) == len(RUNS)


@pytest.mark.parametrize("run", FIGURES, ids=lambda run: run.name)
def test_a_figures_flags_are_known(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    bench, *flags = run.argv[run.argv.index("bench") + 1 :]
    if bench == "serving":
        config = parse_config("serving", "", flags, ServingConfig)
        assert (config.commit, config.pair) == ("abc", run.gpus == 2)
    elif torch.cuda.device_count() < run.gpus:
        assert cli.main(["bench", bench, *flags]) == 1
        error = capsys.readouterr().err
        assert "GPU" in error and "Traceback" not in error


def test_each_run_has_its_verdict(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def verdict(program: str, gpus: int = 0, seconds: float = 30.0) -> Verdict:
        run = Run("run", gpus, seconds, "", ("-c", program))
        return done(run, sys.executable, log, ()).verdict

    assert verdict("print('what it printed')") is Verdict.PASSED
    assert log.read_text() == "what it printed\n"
    assert verdict("raise SystemExit(3)") is Verdict.FAILED
    assert verdict("raise SystemExit(3)", gpus=1) is Verdict.LEFT_OUT
    assert verdict("import time; time.sleep(60)", seconds=0.2) is Verdict.OUT_OF_TIME


@pytest.mark.parametrize("wait", ["", "; time.sleep(60)"])
def test_what_a_run_started_ends_with_it(wait: str, tmp_path: Path) -> None:
    child = (
        "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; time.sleep(60)"
    )
    program = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"print(p.pid, flush=True){wait}"
    )
    log, seconds = tmp_path / "log", 2.0
    while True:
        begun = time.monotonic()
        done(Run("run", 0, seconds, "", ("-c", program)), sys.executable, log, ())
        # Without an interruption, the child would sleep for a minute.
        assert time.monotonic() - begun < seconds + 50
        if said := log.read_text():
            break
        # On a busy machine the time was over before the child began.
        seconds *= 2
    pid = int(said.split()[0])
    until(lambda: b"SIG_IGN" not in command_of(pid), "the run's child still lives")


def test_tests_share_the_gpus_and_what_is_timed_has_the_machine() -> None:
    runs = [run for run in RUNS if run.name.startswith(("tests_", "serving", "speculation"))]
    lock, running, most = threading.Lock(), dict[str, Sequence[str]](), [0]

    def outcome(run: Run, gpus: Sequence[str]) -> Outcome:
        with lock:
            running[run.name] = gpus
            taken = [gpu for some in running.values() for gpu in some]
            assert len(taken) == len(set(taken)), "two runs on one GPU"
            assert not run.is_timed or len(running) == 1
            most[0] = max(most[0], len(running))
        if not run.is_timed:
            # The first two must overlap, however slow the machine is.
            until(lambda: most[0] == 2, "no two tests at once")
        with lock:
            del running[run.name]
        return Outcome(run, Verdict.PASSED, 0.0)

    ended = [one.run for one in outcomes_of(runs, ("3", "5"), outcome)]
    assert sorted(ended, key=RUNS.index) == runs
    timed = [run for run in ended if run.is_timed or run.gpus == 2]
    assert timed == [run for run in runs if run.is_timed or run.gpus == 2]


def test_a_run_sees_the_gpus_that_it_was_given(tmp_path: Path) -> None:
    run = Run("run", 1, 60.0, "", ("-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"))
    assert done(run, sys.executable, tmp_path / "log", ("5",)).verdict is Verdict.PASSED
    assert (tmp_path / "log").read_text() == "5\n"


def test_a_table_is_kept_of_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["--out", str(tmp_path), "--only", "serving_gpu_pair_agents128"]) == 0
    rows = (tmp_path / "runs.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| serving_gpu_pair_agents128",
        "| serving_gpu_pair_agents128_cold",
    ]
    assert all("left out" in row for row in rows)


def test_what_has_no_time_left_is_in_the_table(tmp_path: Path) -> None:
    assert main(["--out", str(tmp_path), "--only", "speculation", "--seconds", "1"]) == 0
    rows = (tmp_path / "runs.md").read_text().splitlines()[2:]
    assert rows and all("too little time is left" in row for row in rows)


@pytest.mark.parametrize("only", ["nothing", "tests,", "tests,nothing"])
def test_a_name_that_no_run_has_is_refused(only: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no run begins with"):
        main(["--out", str(tmp_path), "--only", only])
    assert not (tmp_path / "runs.md").exists()
