"""The folders used while running other projects' suites: copies of the suites, the two models'
folders, the environments of their packages."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.clients.install import install, interpreter
from scripts.suites.stand_ins.served_node import ServedNode
from tasuki.model.named_checkpoints import embedded_model
from tests.harness.tool_caller import tool_caller

ROOT = Path(__file__).parents[2]
STAND_INS = Path(__file__).parent / "stand_ins"
TEMPLATES = {"tool_caller": "qwen3_8", "tool_caller_quick": "qwen3_5_nothink"}
"""The chat template of each served model: the tool-calling model with thinking, and without."""
PROGRAM = Path(sys.executable).with_name("tasuki")
SUITE_SECONDS = 3 * 3600.0
TEST_SECONDS = 150


class MissingSuite(RuntimeError):
    """A suite is not in the folder of suites; the message names its origin."""


@dataclass(frozen=True)
class Workplace:
    """The folders of a run. suites: folder holding the suites. folder: working folder, emptied at
    the start. chosen: files or folders of the suites to run; empty: all."""

    suites: Path
    folder: Path
    chosen: tuple[str, ...]

    def prepare(self) -> None:
        """Make the working folder and the model folders in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        models = self.folder / "models"
        models.mkdir()
        for name, template in TEMPLATES.items():
            tool_caller(models / name, template)
        shutil.copytree(embedded_model(), models / "embedded")

    def suite(self, name: str, origin: str) -> Path:
        """Return the folder of a suite. Raises MissingSuite naming its origin."""
        folder = self.suites / name
        if not folder.is_dir():
            raise MissingSuite(f"{folder} is not there: {origin}")
        return folder

    def copy(self, source: Path, name: str) -> Path:
        """Copy a folder into the working folder, so a run may change it. Returns the copy."""
        copied = self.folder / name
        shutil.copytree(source, copied, ignore=shutil.ignore_patterns("node_modules", ".git"))
        return copied

    def environment(self, *paths: Path) -> dict[str, str]:
        """Return the environment variables of a suite's programs: the stand-ins and paths, the
        locations of the node and the models, no hub."""
        searched = os.pathsep.join(map(str, (STAND_INS, *paths)))
        return {
            **os.environ,
            "PYTHONPATH": searched,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TASUKI_PROGRAM": str(PROGRAM),
            "SUITES_MODELS": str(self.folder / "models"),
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
        }

    @contextmanager
    def served(self, model: str, *flags: str) -> Iterator[str]:
        """Serve the model during a block; yield the node's URL."""
        node = ServedNode(PROGRAM, self.folder / "models" / model, list(flags))
        try:
            yield node.url
        finally:
            node.stop()

    def pytest(self, root: Path, targets: list[str], *paths: Path) -> Path:
        """Run the suite's tests with pytest. root: working folder of the tests. targets: files or
        folders of tests, replaced by `chosen` if it names any. Further arguments make paths
        importable. Returns the file of outcomes."""
        install("suites")
        python = interpreter("suites")
        assert python is not None
        outcomes = self.folder / "outcomes.jsonl"
        given = [target for target in targets if (root / target).exists()]
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-p", "outcome_lines", f"--timeout={TEST_SECONDS}", "--tb=short", "-rN"]
        settings = root / "pytest.ini"
        if not settings.exists():
            settings.write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
        command += ["--continue-on-collection-errors", "-c", str(settings)]
        environment = {**self.environment(*paths), "SUITES_OUTCOMES": str(outcomes)}
        with open(self.folder / "log", "w", encoding="utf-8") as log:
            subprocess.run(
                [*command, *(self.chosen or given)],
                cwd=root,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=SUITE_SECONDS,
                check=False,
            )
        return outcomes
