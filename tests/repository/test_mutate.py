"""The mutants of `make mutate`: where they are, how they are named, and that a trial tells."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scripts.common.package_copy import CPP_TESTS
from scripts.mutate import cpp_source, python_source
from scripts.mutate.__main__ import interval
from scripts.mutate.campaign import drawn
from scripts.mutate.collected_pytest import Ran
from scripts.mutate.equivalents import equivalents
from scripts.mutate.live_functions import UnlikeFunctions, change
from scripts.mutate.mutant import Mutant, Status
from scripts.mutate.results import Results, Verdict, digest_of_tests
from scripts.mutate.targets import CPP as CPP_TARGETS
from scripts.mutate.targets import PYTHON as PYTHON_TARGETS
from scripts.mutate.targets import Target, aims
from scripts.mutate.touched_lines import TouchedLines
from scripts.mutate.workshop import Baselines, BrokenWorkshop, Workshop

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
    found = aims(ROOT)
    keys = [aim.mutant.key for aim in found]
    assert len(set(keys)) == len(keys) > 1000
    assert {aim.target for aim in found} == {*PYTHON_TARGETS, *CPP_TARGETS}
    for aim in found:
        source = (ROOT / aim.path).read_bytes()
        assert aim.mutant.edit.applied(source) != source
        assert all((ROOT / run).exists() for run in aim.target.runs), aim.target
        assert (CPP_TESTS in aim.target.tests) <= aim.is_cpp
    assert {aim.target.area for aim in found} == {
        *("fences", "digests", "allocation", "admission", "auth", "sampling")
    }


def test_every_mutant_that_is_called_equivalent_is_one() -> None:
    known = {aim.mutant.key for aim in aims(ROOT)}
    assert set(equivalents(ROOT / "docs" / "testing.md")) <= known


def test_a_sample_is_its_seeds_and_takes_the_areas_in_turn() -> None:
    found = aims(ROOT)
    first, again, other = (list(drawn(found, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({aim.target.area for aim in first[:6]}) == 6
    assert sorted(aim.mutant.key for aim in first) == sorted(aim.mutant.key for aim in found)


def test_what_is_known_of_a_mutant_holds_for_its_symbols_text_only(tmp_path: Path) -> None:
    aim = aims(ROOT)[0]
    tests = digest_of_tests(ROOT, aim)

    def verdict(status: Status) -> Verdict:
        return Verdict(
            *(aim.mutant.key, aim.target.area, "a -> b", status.value, 1.0),
            *(aim.mutant.scope_digest, tests),
        )

    file = tmp_path / "results.jsonl"
    Results(file).add(verdict(Status.CAUGHT))
    known = Results(file)
    assert known.known(aim, tests) is Status.CAUGHT
    assert known.known(aim, "other tests") is Status.CAUGHT, "more tests catch no less"
    edit = replace(aim.mutant.edit, scope="another text")
    assert known.known(replace(aim, mutant=Mutant(aim.mutant.key, edit)), tests) is None
    known.add(verdict(Status.SURVIVED))
    assert known.known(aim, tests) is Status.SURVIVED
    assert known.known(aim, "other tests") is None
    known.add(verdict(Status.UNNOTICED))
    again = Results(file)
    assert again.known(aim, tests) is Status.UNNOTICED
    assert again.known(aim, "other tests") is None
    assert len(file.read_text().splitlines()) == 1, "what was known before is not kept"
    with file.open("a") as torn:
        torn.write('{"key": "a run that was killed')
    assert Results(file).known(aim, tests) is Status.UNNOTICED


def test_functions_that_live_do_what_the_changed_text_says() -> None:
    before = """
def limit(value):
    return min(value, 7)

def counted(step):
    def count(value):
        return limit(value) + step
    return count

class Book:
    @property
    def size(self):
        return counted(1)(100)
"""
    made: dict[str, Any] = {}
    exec(compile(before, "/a/book.py", "exec"), made)
    standing = made["counted"](10)
    functions = [made["limit"], made["counted"], standing, made["Book"].size.fget]

    def after(old: str, new: str) -> tuple[int, int]:
        change(functions, "/a/book.py", before, before.replace(old, new))
        return standing(100), made["Book"]().size

    assert after("7", "7") == (17, 8)
    assert after("7", "9") == (19, 10)
    assert after("+ step", "- step") == (-3, 6), "a closure that was made before"
    change(functions, "/another/book.py", before, before.replace("7", "50"))
    assert standing(100) == -3, "only that file's functions"
    for unlike in (before.replace("def count(", "def other("), before.replace("+ step", "")):
        with pytest.raises(UnlikeFunctions):
            change(functions, "/a/book.py", before, unlike)


def test_a_function_that_lives_may_lose_what_it_makes_for_itself() -> None:
    before = "def all_of(values):\n    return [value + 1 for value in values]\n"
    made: dict[str, Any] = {}
    exec(compile(before, "/a/all.py", "exec"), made)
    after = "def all_of(values):\n    return None\n"
    change([made["all_of"]], "/a/all.py", before, after)
    assert made["all_of"]([1]) is None


def test_tests_of_a_mutant_run_its_lines_and_come_by_their_cost(tmp_path: Path) -> None:
    aim = next(aim for aim in aims(ROOT) if len(aim.target.runs) > 1 and not aim.is_cpp)
    line = (ROOT / aim.path).read_bytes().count(b"\n", 0, aim.mutant.edit.start) + 1
    first, second, *_ = aim.target.runs
    lines: dict[str, list[int]] = {str(aim.path): [line]}
    noted = {
        first: [
            Ran("dear", 9.0, 1.0, None, lines),
            Ran("fails without a mutant", 0.1, 1.0, "AssertionError", lines),
            Ran("elsewhere", 0.1, 1.0, None, {str(aim.path): [line - 1]}),
            Ran("cheap", 0.51, 2.0, None, lines),
            Ran("as cheap, later in the file", 0.5, 1.9, None, lines),
        ],
        second: [Ran("of another file", 0.1, 1.0, None, {"engine/other.py": [line]})],
    }
    asked: list[str] = []

    def measure(file: str) -> list[Ran]:
        asked.append(file)
        return noted[file]

    kept = tmp_path / "touched.jsonl"
    for _ in range(2):
        lines_of = TouchedLines(ROOT, kept, [aim])
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
        aim
        for aim in aims(ROOT)
        if aim.mutant.key == "evidence.DrainAcknowledged.acknowledge True 0"
    ]
    aim = replace(aim, target=Target("fences", "evidence", ("test_fence",)))
    blind = replace(aim, target=Target("fences", "evidence", ("test_unserved",)))
    before = (ROOT / aim.path).read_bytes()
    touched = TouchedLines(ROOT, tmp_path / "touched.jsonl", [aim])
    with closing(Workshop(ROOT, tmp_path, Baselines(), touched)) as workshop:
        glanced = workshop.glance(aim)
        assert glanced.status is Status.CAUGHT and glanced.by.startswith("test_fence.py::")
        assert workshop.glance(blind).status is Status.UNNOTICED
        assert workshop.try_out(aim).status is Status.CAUGHT
        assert (workshop.place / aim.path).read_bytes() == before
        assert workshop.try_out(blind).status is Status.SURVIVED
    assert (ROOT / aim.path).read_bytes() == before


@pytest.mark.slow
def test_where_nothing_can_be_built_no_mutant_is_called_invalid(tmp_path: Path) -> None:
    found = aims(ROOT)
    aim = next(aim for aim in found if aim.is_cpp)
    (tmp_path / "cpp").mkdir()
    (tmp_path / "cpp" / "build.ninja").write_text("not a build")
    touched = TouchedLines(ROOT, tmp_path / "touched.jsonl", found)
    with closing(Workshop(ROOT, tmp_path, Baselines(), touched)) as workshop:
        for _ in range(2):
            with pytest.raises(BrokenWorkshop, match="do not build: see"):
                workshop.glance(aim)
