"""Tests of stop strings in text cut into any pieces."""

from hypothesis import given
from hypothesis import strategies as st

from tasuki.server.text.stop_strings import StopStrings, held_back
from tests.harness.answer_pieces import cut


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 99), max_size=8),
)
def test_text_ends_before_the_first_stop_string_wherever_it_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    scanner = StopStrings(stops)
    out = "".join(scanner.push(piece) for piece in cut(text, cuts))
    held = text[len(out) :]
    assert scanner.found or any(stop.startswith(held) for stop in stops) or not held
    out += scanner.finish()
    whole = StopStrings(stops)
    assert whole.push(text) + whole.finish() == out and whole.found == scanner.found
    starts = [text.find(stop) for stop in stops if stop in text]
    assert (scanner.found is not None) == bool(starts)
    if starts:
        assert not any(stop in out for stop in stops) and text.startswith(out)
        assert any(text.startswith(stop, len(out)) for stop in stops)
    else:
        assert out == text


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 99), max_size=8),
)
def test_a_kept_stop_string_is_the_text_s_end(text: str, stops: list[str], cuts: list[int]) -> None:
    plain, kept = StopStrings(stops), StopStrings(stops, is_kept=True)
    pieces = cut(text, cuts)
    without = "".join(map(plain.push, pieces)) + plain.finish()
    whole = "".join(map(kept.push, pieces)) + kept.finish()
    assert plain.found == kept.found and text.startswith(whole)
    assert whole[len(without) :] in stops if kept.found else whole == without


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    scanner = StopStrings(["<end>"])
    assert [scanner.push(piece) for piece in ("a <", "b <e", "nd", "!")] == [
        "a ",
        "<b ",
        "",
        "<end!",
    ]


class NaiveStops:
    """Stop strings by their definition: each is searched in all text held. The one that ends first
    counts, and the longest among equals."""

    def __init__(self, stops: list[str]) -> None:
        self.stops = stops
        self.held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        whole = self.held + text
        found = [
            (whole.find(stop) + len(stop), -len(stop), stop) for stop in self.stops if stop in whole
        ]
        if found:
            end, _, self.found = min(found)
            start = end - len(self.found)
            self.held = ""
            return whole[:start]
        ends = [whole[at:] for at in range(len(whole))]
        begun = (end for end in ends if any(stop.startswith(end) for stop in self.stops))
        self.held = next(begun, "")
        return whole[: len(whole) - len(self.held)]


@given(
    pieces=st.lists(st.text("abc", max_size=6), max_size=12),
    stops=st.lists(st.text("abc", min_size=1, max_size=7), min_size=1, max_size=6),
)
def test_each_piece_is_given_out_as_by_the_definition(pieces: list[str], stops: list[str]) -> None:
    scanner, naive = StopStrings(stops), NaiveStops(stops)
    for piece in pieces:
        assert scanner.push(piece) == naive.push(piece)
        assert scanner.found == naive.found
        if naive.found:
            return
        assert scanner.held == len(naive.held)
    assert scanner.finish() == naive.held


@given(text=st.text("<a/\n", max_size=9), marker=st.text("<a/\n", min_size=1, max_size=4))
def test_the_longest_beginning_of_a_marker_is_held_back(text: str, marker: str) -> None:
    ends = (length for length in range(len(marker)) if text.endswith(marker[:length]))
    assert held_back(text, (marker,)) == max(ends)
