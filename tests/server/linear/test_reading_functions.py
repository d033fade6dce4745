"""Tests of coverage: every function that takes a caller's or a model's text is under the test of
growth, or excluded.

The functions are found in the sources. An entry's functions are found by running it.
"""

import sys
from collections.abc import Iterable
from types import FrameType

import pytest

from .answers import answers
from .bodies import Served, bodies
from .entries import Case, Entry, cases_of
from .exclusions import EXCLUDED, is_excluded, matching
from .pictures import pictures
from .readers import readers
from .walk import ROOT, Place, Walk

TO_DO = (
    "Give it an entry in tests/server/linear (answers.py, bodies.py or readers.py), or a shape "
    "that leads to it, or exclude it with a reason in exclusions.py."
)


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    served = Served.of(tmp_path_factory.mktemp("served"))
    return [*answers(), *bodies(served), *readers(served), *pictures()]


@pytest.fixture(scope="module")
def reached(entries: list[Entry]) -> frozenset[Place]:
    return reached_by(cases_of(entries))


@pytest.fixture(scope="module")
def walk() -> Walk:
    return Walk.of_sources()


def test_every_function_that_takes_text_runs_under_an_entry(
    walk: Walk, reached: frozenset[Place]
) -> None:
    missing = [
        found.shown
        for place, found in sorted(walk.functions.items())
        if found.reads and place not in reached and not is_excluded(place)
    ]
    assert not missing, "\n".join(["No entry runs these functions:", *missing, TO_DO])


def test_a_function_that_takes_text_is_called_by_known_ones_alone(
    walk: Walk, reached: frozenset[Place]
) -> None:
    known = reached | {place for place in walk.functions if is_excluded(place)}
    missing = [found.shown for found in walk.uncovered(frozenset(known))]
    assert not missing, "\n".join(["Others call these functions:", *missing, TO_DO])


def test_an_entry_s_functions_exist_and_run(
    walk: Walk, entries: list[Entry], reached: frozenset[Place]
) -> None:
    named = {place for entry in entries for place in entry.functions}
    gone = sorted(named - walk.functions.keys())
    assert not gone, f"no such functions: {gone}: correct the entries"
    assert not named - reached, f"no entry runs its own: {sorted(named - reached)}"


def test_every_exclusion_stands_for_a_function_that_takes_text(walk: Walk) -> None:
    readers_of_text = [place for place, found in walk.functions.items() if found.reads]
    gone = [
        pattern
        for pattern in EXCLUDED
        if not any(matching(pattern, place) for place in readers_of_text)
    ]
    assert not gone, f"nothing is excluded by {gone}: take them out of exclusions.py"


def test_an_exact_exclusion_is_run_by_no_entry(reached: frozenset[Place]) -> None:
    needless = sorted(place for place in EXCLUDED if place in reached)
    assert not needless, f"entries run {needless}: take them out of exclusions.py"


NEW_READER = """
from collections.abc import Mapping

def read(text: str) -> int:
    return _inner(text)

def _inner(text: str) -> int:
    return len(text)

class Reader:
    def push(self, piece: "Mapping[str, int]") -> None:
        def keep(value: bytes) -> None: ...

def calls(callback: Callable[[str], None], count: int) -> None:
    callback(str(count))
"""


def test_the_walk_sees_functions_methods_and_inner_functions() -> None:
    walk = Walk({"server/text/new.py": NEW_READER})
    names = [found.place.partition(":")[2] for found in walk.uncovered(frozenset())]
    assert names == ["Reader.push", "_inner", "read"]
    found = walk.uncovered(frozenset({"server/text/new.py:read"}))
    assert [item.shown for item in found] == ["server/text/new.py:11 Reader.push"]


SMALL = 1500
"""Size in characters, enough for every shape to reach its second part."""


def reached_by(cases: Iterable[Case]) -> frozenset[Place]:
    """Return the places of all functions of this repository called by the cases."""
    found: set[tuple[str, str]] = set()

    def see(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    for case in cases:
        run = case.prepare(SMALL)
        sys.setprofile(see)
        try:
            run()
        finally:
            sys.setprofile(None)
    root = f"{ROOT}/"
    return frozenset(
        f"{file.removeprefix(root)}:{name}" for file, name in found if file.startswith(root)
    )
