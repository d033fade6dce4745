"""Tests of growth: reading a caller's or a model's text costs no more than its length, in time and
in memory.

Each entry is measured with each of its shapes at n, 4n and 16n. `make test` takes an n of some
milliseconds. A growth steeper than linear is measured again: the best of three, then with an n of
50 ms, before it fails. `make test-slow` takes 50 ms at once, and the largest input allowed.

If even the largest input takes less time, this bounds the cost, and the shape passes.
"""

import pytest

from .answers import answers
from .bodies import Served, bodies
from .entries import TOKEN_CHARACTERS, Answer, Case, Entry, cases_of
from .measure import (
    BASE_SECONDS,
    Growth,
    memory_growth,
    no_collections,
    one_heap,
    processor_seconds,
    time_growth,
)
from .pictures import pictures
from .readers import readers

QUICK_SECONDS = 0.001
QUICK_CHARACTERS = 1 << 17
QUICK_ANSWER = 1 << 13
"""Size of an answer in `make test`, in characters."""
MOST_SECONDS_A_TOKEN = 20e-6
"""Processor time per token, at the largest input allowed."""
MOST_HOLD_SECONDS = 0.005
"""Longest time one token may hold an event loop, in seconds."""
LARGEST_ANSWER = 1 << 18
"""Size of a long answer in tokens."""


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> list[Entry]:
    served = Served.of(tmp_path_factory.mktemp("served"))
    return [*answers(), *bodies(served), *readers(served), *pictures()]


def complaint(case: Case, base: float, quick: int | None) -> str:
    """Return a complaint about the case's costs, or an empty text if they are linear."""
    try:
        growth = time_growth(case.prepare, case.entry.most, base, quick)
        if not growth.is_linear:
            return f"{case.id}: seconds of processor time {growth}"
        sizes = [max(1, size // 16) for size in sorted(growth.costs)]
        memory = memory_growth(case.prepare, sizes)
    except Exception as error:
        return f"{case.id}: raised {error!r:.300}"
    return "" if memory.is_linear else f"{case.id}: bytes {memory}"


def complaints(entries: list[Entry], base: float, quick: int | None = None) -> list[str]:
    with no_collections(), one_heap():
        return [found for case in cases_of(entries) if (found := complaint(case, base, quick))]


@pytest.mark.parametrize(
    ("costs", "linear"),
    [
        ((1.0, 4.0, 16.0), True),
        ((1.0, 6.2, 24.2), True),
        ((1.0, 9.0, 36.5), False),
        ((1.0, 4.0, 25.0), False),
        ((1.0, 10.0, 100.0), False),
        ((1.0, 16.0, 256.0), False),
    ],
)
def test_a_growth_is_linear_by_its_last_ratio_and_by_all(
    costs: tuple[float, ...], linear: bool
) -> None:
    assert Growth(dict(zip((1, 4, 16), costs, strict=True)), 0.001).is_linear is linear


@pytest.mark.timeout(900)
def test_time_and_memory_grow_as_the_input(entries: list[Entry]) -> None:
    found = complaints(entries, QUICK_SECONDS, QUICK_CHARACTERS)
    assert not found, "\n".join(found)


@pytest.mark.timeout(300)
def test_no_token_holds_the_event_loop(entries: list[Entry]) -> None:
    found = _holds(entries, QUICK_ANSWER)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_time_and_memory_grow_as_the_largest_inputs(entries: list[Entry]) -> None:
    found = complaints(entries, BASE_SECONDS)
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_largest_answers_cost_20_us_a_token_and_hold_no_loop(entries: list[Entry]) -> None:
    size = LARGEST_ANSWER * TOKEN_CHARACTERS
    found = _holds(entries, size)
    with no_collections():
        for case in cases_of([entry for entry in entries if isinstance(entry, Answer)]):
            cost = processor_seconds(case.prepare, size, 60.0) / LARGEST_ANSWER
            if cost > MOST_SECONDS_A_TOKEN:
                found.append(f"{case.id}: {cost * 1e6:.1f} us a token")
    assert not found, "\n".join(found)


def _holds(entries: list[Entry], size: int) -> list[str]:
    """Return complaints about answers of `size` characters. Another thread may delay a push, so the
    lesser of two runs counts."""
    found = []
    with no_collections():
        for entry in (entry for entry in entries if isinstance(entry, Answer)):
            for shape in entry.shapes:
                held = entry.longest_push(shape, size)
                if held > MOST_HOLD_SECONDS:
                    held = min(held, entry.longest_push(shape, size))
                if held > MOST_HOLD_SECONDS:
                    found.append(f"{entry.name} - {shape}: a token of {held * 1e3:.1f} ms")
    return found
