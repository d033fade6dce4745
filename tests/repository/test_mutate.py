"""Tests of the mutants of `python -m scripts.mutate`: their places, their names, and the result of
a trial."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from scripts.common.package_copy import CPP_TESTS
from scripts.mutate import cpp_source, python_source
from scripts.mutate.__main__ import interval
from scripts.mutate.campaign import drawn
from scripts.mutate.mutant import Mutant, Status
from scripts.mutate.results import Results, equivalents
from scripts.mutate.targets import CPP as CPP_TARGETS
from scripts.mutate.targets import PYTHON as PYTHON_TARGETS
from scripts.mutate.targets import Aim, Target, aims
from scripts.mutate.touched_lines import Ran, TouchedLines
from scripts.mutate.workshop import BrokenWorkshop, Workshop

ROOT = Path(__file__).parents[2]

PYTHON = b'''
LIMIT = 7
class Book:
    def has(self, number: int) -> bool:
        """Not code: 1 < 2."""
        if number < 3:
            raise ValueError(f"{number} < 3")
        log.info("asked for %d", number + 1)
        self.asked()
        return number in self.numbers
'''
CPP = b"""namespace tasuki::cache {
bool Book::has(std::int64_t number) const {
  if (number < 3) throw InvalidArgument("1 < 2");
  asked();
  return !closed_ && numbers_.contains(number);  // a < b
}
int Book::size() const { return static_cast<int>(numbers_.size()) + 1; }
}  // namespace tasuki::cache
"""


@cache
def every_aim() -> list[Aim]:
    return aims(ROOT)


def changes(source: bytes, mutants: list[Mutant]) -> dict[str, str]:
    return {mutant.key: mutant.edit.shown(source) for mutant in mutants}


def test_python_is_mutated_inside_functions_and_not_in_texts() -> None:
    assert changes(PYTHON, python_source.mutants_of(PYTHON, "book")) == {
        "book.Book.has < 0": "number < 3 -> (number <= 3)",
        "book.Book.has guard 0": "number < 3 -> (False)",
        "book.Book.has if 0": "number < 3 -> (not number < 3)",
        "book.Book.has number 0": "3 -> (4)",
        "book.Book.has statement 0": "self.asked() -> pass",
        "book.Book.has in 0": "number in self.numbers -> (number not in self.numbers)",
        "book.Book.has return 0": "number in self.numbers -> (not number in self.numbers)",
    }


def test_cpp_is_mutated_inside_functions_and_not_in_texts() -> None:
    assert changes(CPP, cpp_source.mutants_of(CPP, "book")) == {
        "book.Book.has guard 0": 'if (number < 3) throw InvalidArgument("1 < 2"); -> ;',
        "book.Book.has < 0": "< -> <=",
        "book.Book.has number 0": "3 -> 4",
        "book.Book.has statement 0": "asked(); -> ;",
        "book.Book.has not 0": "! -> nothing",
        "book.Book.has && 0": "&& -> ||",
        "book.Book.size + 0": "+ -> -",
        "book.Book.size number 0": "1 -> 2",
    }


def test_a_key_outlives_what_stands_before_its_symbol() -> None:
    moved = b"import os\n\ndef first() -> int:\n    return 1 + 2\n" + PYTHON
    before = {mutant.key: mutant for mutant in python_source.mutants_of(PYTHON, "book")}
    after = {mutant.key: mutant for mutant in python_source.mutants_of(moved, "book")}
    for key, mutant in before.items():
        assert after[key].scope_digest == mutant.scope_digest
        assert after[key].edit.start > mutant.edit.start


def test_every_target_stands_for_mutants_and_for_tests_that_are_there() -> None:
    found = every_aim()
    keys = [aim.mutant.key for aim in found]
    assert len(set(keys)) == len(keys) > 1000
    assert {aim.target for aim in found} == {*PYTHON_TARGETS, *CPP_TARGETS}
    for aim in found:
        source = (ROOT / aim.path).read_bytes()
        assert aim.mutant.edit.applied(source) != source
        assert all((ROOT / run).exists() for run in aim.target.runs), aim.target
        assert (CPP_TESTS in aim.target.tests) <= aim.is_cpp
    assert {aim.target.area for aim in found} == {
        *("fences", "digests", "allocation", "admission", "auth", "sampling"),
        *("transfers", "merged"),
    }


def test_every_mutant_that_is_called_equivalent_is_one() -> None:
    known = {aim.mutant.key for aim in every_aim()}
    assert set(equivalents(ROOT / "scripts/mutate/equivalents.toml")) <= known


def test_a_sample_is_its_seeds_and_takes_the_areas_in_turn() -> None:
    found = every_aim()
    first, again, other = (list(drawn(found, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({aim.target.area for aim in first[:6]}) == 6
    assert sorted(aim.mutant.key for aim in first) == sorted(aim.mutant.key for aim in found)


def test_what_is_known_of_a_mutant_holds_for_its_symbols_text_only(tmp_path: Path) -> None:
    aim = every_aim()[0]
    blind = replace(aim, target=replace(aim.target, tests=("test_words",)))
    file = tmp_path / "results.jsonl"

    def status(of: Aim) -> str | None:
        verdict = Results(file, ROOT).known(of)
        return None if verdict is None else verdict.status

    Results(file, ROOT).add(aim, Status.CAUGHT, "", 1.0)
    assert status(aim) == "caught"
    assert status(blind) == "caught", "more tests catch no less"
    edit = replace(aim.mutant.edit, scope="another text")
    assert status(replace(aim, mutant=Mutant(aim.mutant.key, edit))) is None
    Results(file, ROOT).add(aim, Status.SURVIVED, "", 1.0)
    assert status(aim) == "survived" and status(blind) is None
    assert len(file.read_text().splitlines()) == 1, "what was known before is not kept"
    with file.open("a") as torn:
        torn.write('{"key": "a run that was killed')
    assert status(aim) == "survived"
    written = file.read_text().replace('"survived"', '"unnoticed"')
    file.write_text(written)
    assert status(aim) is None, "not all of its tests were tried"


def test_tests_of_a_mutant_run_its_lines_and_come_by_their_cost() -> None:
    aim = next(aim for aim in every_aim() if len(aim.target.runs) > 1 and not aim.is_cpp)
    line = (ROOT / aim.path).read_bytes().count(b"\n", 0, aim.mutant.edit.start) + 1
    first, second, *_ = aim.target.runs
    lines: dict[str, list[int]] = {str(aim.path): [line]}
    noted = {
        first: [
            Ran("dear", 9.0, lines),
            Ran("elsewhere", 0.1, {str(aim.path): [line - 1]}),
            Ran("cheap", 0.51, lines),
            Ran("as cheap, later in the file", 0.5, lines),
        ],
        second: [Ran("of another file", 0.1, {"engine/other.py": [line]})],
    }
    asked: list[str] = []

    def measure(file: str) -> list[Ran]:
        asked.append(file)
        return noted[file]

    lines_of = TouchedLines(ROOT, [aim])
    for _ in range(2):
        found = lines_of.touching(aim, first, measure)
        assert [ran.test for ran in found] == ["cheap", "as cheap, later in the file", "dear"]
        assert lines_of.touching(aim, second, measure) == []
    assert asked == [first, second], "what is known is measured again"


@pytest.mark.parametrize(
    ("good", "tried", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (570, 600, 0.9295, 0.9647)],
)
def test_the_interval_of_a_share_is_wilsons(good: int, tried: int, low: float, high: float) -> None:
    assert interval(good, tried) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.slow
def test_a_trial_catches_in_a_copy_and_leaves_the_checkout_alone(tmp_path: Path) -> None:
    (aim,) = [
        aim for aim in every_aim() if aim.mutant.key == "lifecycle.fence.Fence.acknowledge True 0"
    ]
    aim = replace(aim, target=Target("fences", "lifecycle.fence", ("test_fence",)))
    blind = replace(aim, target=Target("fences", "lifecycle.fence", ("test_log_lines",)))
    before = (ROOT / aim.path).read_bytes()
    workshop = Workshop(ROOT, tmp_path, TouchedLines(ROOT, [aim]))
    status, by = workshop.try_out(aim)
    assert status is Status.CAUGHT and by.startswith("test_fence.py::")
    assert workshop.try_out(blind) == (Status.SURVIVED, "")
    assert (workshop.place / aim.path).read_bytes() == before
    assert (ROOT / aim.path).read_bytes() == before


@pytest.mark.slow
def test_where_nothing_can_be_built_no_mutant_is_called_invalid(tmp_path: Path) -> None:
    found = every_aim()
    aim = next(aim for aim in found if aim.is_cpp)
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "build.ninja").write_text("not a build")
    workshop = Workshop(ROOT, tmp_path, TouchedLines(ROOT, found))
    for _ in range(2):
        with pytest.raises(BrokenWorkshop, match="do not build: see"):
            workshop.try_out(aim)
