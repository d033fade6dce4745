"""Stop strings in text that comes in any pieces."""

from hypothesis import given
from hypothesis import strategies as st

from tasuki.server.text.stop_strings import StopStrings
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
