"""The states of a front worker's asks: every order of an ask's events."""

from collections.abc import Callable, Iterator
from itertools import permutations, product

import pytest

from tasuki.server.workers.registry import AskOrderError, AskState, AskTable

CALL = 7


def held(table: AskTable[str]) -> bool:
    """Return whether the ask holds something: it was granted, and is not over."""
    return table.state(CALL) in (AskState.BEGUN, AskState.ENDING)


EVENTS: dict[str, Callable[[AskTable[str]], object]] = {
    "begin": lambda table: table.begin(CALL, "begun"),
    "grant": lambda table: table.grant(CALL),
    "end": lambda table: table.end(CALL),
    "over": lambda table: table.over(CALL),
}
NONE = None
A, B, W = AskState.ASKED, AskState.BEGUN, AskState.WITHDRAWN
E, V, F = AskState.ENDING, AskState.OVER, AskState.ENDED_FIRST
TRANSITIONS = {
    (NONE, "begin"): A,
    (NONE, "grant"): AskOrderError,
    (NONE, "end"): F,
    (NONE, "over"): AskOrderError,
    (A, "begin"): AskOrderError,
    (A, "grant"): B,
    (A, "end"): W,
    (A, "over"): NONE,
    (B, "begin"): AskOrderError,
    (B, "grant"): AskOrderError,
    (B, "end"): E,
    (B, "over"): V,
    (W, "begin"): AskOrderError,
    (W, "grant"): E,
    (W, "end"): W,
    (W, "over"): NONE,
    (E, "begin"): AskOrderError,
    (E, "grant"): AskOrderError,
    (E, "end"): E,
    (E, "over"): NONE,
    (V, "begin"): AskOrderError,
    (V, "grant"): AskOrderError,
    (V, "end"): NONE,
    (V, "over"): AskOrderError,
    (F, "begin"): NONE,
    (F, "grant"): AskOrderError,
    (F, "end"): F,
    (F, "over"): AskOrderError,
}
WAYS: dict[AskState | None, tuple[str, ...]] = {
    NONE: (),
    A: ("begin",),
    B: ("begin", "grant"),
    W: ("begin", "end"),
    E: ("begin", "grant", "end"),
    V: ("begin", "grant", "over"),
    F: ("end",),
}


@pytest.mark.parametrize(("state", "event"), TRANSITIONS)
def test_ask_table_in_each_state_at_each_event_moves_as_its_table_says(
    state: AskState | None, event: str
) -> None:
    table = AskTable[str]()
    for step in WAYS[state]:
        EVENTS[step](table)
    assert table.state(CALL) is state
    follows = TRANSITIONS[state, event]
    if follows is AskOrderError:
        with pytest.raises(AskOrderError, match=f"of ask {CALL}"):
            EVENTS[event](table)
        assert table.state(CALL) is state
    else:
        EVENTS[event](table)
        assert table.state(CALL) is follows
        assert len(table) == (follows is not None)


def orders() -> Iterator[tuple[str, ...]]:
    """Yield the possible orders of one ask's events: granted or refused, ended or not."""
    for events in (("begin", "grant", "end", "over"), ("begin", "end", "over")):
        for order in permutations(events):
            begin, over = order.index("begin"), order.index("over")
            grant = order.index("grant") if "grant" in order else begin
            # The node sends a grant and an over, after the ask has arrived.
            if begin <= grant <= over and begin < over:
                yield order


@pytest.mark.parametrize("order", [*orders()], ids="-".join)
def test_ask_table_after_any_order_of_begin_and_end_is_empty(order: tuple[str, ...]) -> None:
    table = AskTable[str]()
    table.begin(CALL - 1, "another")
    begins = True
    for event in order:
        if event == "begin":
            begins = table.begin(CALL, "begun")
        # If the end came first, nothing begins, so nothing is granted or over.
        elif event == "end" or begins:
            EVENTS[event](table)
    assert begins == (order.index("begin") < order.index("end"))
    assert table.state(CALL) is None and len(table) == 1
    assert table.end(CALL) is None and len(table) == 1, "a late end is remembered"


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_ask_table_with_parts_ends_at_the_last_part_wherever_the_begin_comes(parts: int) -> None:
    for before in range(parts + 1):
        table = AskTable[str]()
        for _ in range(before):
            assert table.end_part(CALL) in (None, F)
        assert table.begin(CALL, "begun", parts) == (before < parts)
        if before < parts:
            table.grant(CALL)
            for part in range(before, parts):
                assert table.end_part(CALL) is B
                assert table.state(CALL) is (E if part == parts - 1 else B)
            table.over(CALL)
        assert len(table) == 0


def test_ask_table_whose_worker_left_empties_as_its_asks_are_over() -> None:
    for state, way in WAYS.items():
        table = AskTable[str]()
        for step in way:
            EVENTS[step](table)
        table.end_all()
        if held(table) or table.state(CALL) is W:
            table.over(CALL)
        assert len(table) == 0, state


def test_ask_table_at_repeated_events_changes_no_other_ask() -> None:
    for events in product(EVENTS, repeat=4):
        table = AskTable[str]()
        table.begin(1, "other")
        for event in events:
            try:
                EVENTS[event](table)
            except AskOrderError:
                continue
        assert table.state(1) is A and table.find(1) == "other"
