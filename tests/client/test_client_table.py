"""The table of a session, from usage objects alone."""

from dataclasses import replace

from tasuki.cli import demo as table
from tasuki.engine import messages as m
from tests.harness.grpc_fixtures import usage


def cells(line: str) -> list[str]:
    return [part.strip() for part in line.split("  ") if part.strip()]


def test_a_row_tells_everything_that_was_counted() -> None:
    told = replace(
        usage(900, 51),
        drafted_tokens=40,
        accepted_tokens=30,
        hit=m.HitBreakdown(900, 640, 576, {"new": 260, "alignment": 64, "kv_evicted": 0}, None),
        transfer=m.TransferReport(3 * 2**20, 9, 10, 0.09, 0.01),
    )
    assert cells(table.row("3", told)) == [
        "3",
        "900",
        "640",
        "576",
        "260",
        "250 ms",
        "3 MiB",
        "10 of 15",
        "90%",
        "50.0",
        "30 of 40",
        "alignment 64",
    ]


def test_what_was_not_measured_is_a_dash() -> None:
    told = replace(usage(5, 1), hit=None, transfer=None, local_fallback=True)
    row = cells(table.row("1", told))
    assert row[2:5] == ["-"] * 3 and row[6:11] == ["-"] * 5
    assert row[11] == "(hand-over lost, prefilled here)"


def test_drafts_are_added_up_over_a_session() -> None:
    drafted = replace(usage(900, 50), drafted_tokens=40, accepted_tokens=30)
    said = table.drafts([drafted, usage(900, 10)])
    assert said == "30 of 40 drafted tokens held (75%): 60 tokens in 30 forwards."
    assert table.drafts([usage(5, 1)]) == "No token of the answers was drafted."


def test_hand_overs_are_added_up_over_a_session() -> None:
    handed = replace(
        usage(900, 50),
        hit=m.HitBreakdown(900, 640, 576, {"new": 260, "alignment": 64}, None),
        transfer=m.TransferReport(2**20, 9, 5, 0.09, 0.01),
    )
    said = table.hand_overs([handed, replace(usage(70, 9), transfer=None), handed])
    assert said.startswith("2 prompts of 1800 tokens were handed over")
    assert "computed 648: of 1152 it had KV and state" in said
    assert "10 of 30 pages were sent, 90% of the time beside the forward" in said
    assert table.hand_overs([replace(usage(70, 9), transfer=None)]) == "Nothing was handed over."


def test_new_tokens_are_not_lost() -> None:
    assert cells(table.row("1", usage(900, 3)))[-1] == "none"


def test_columns_stand_under_their_titles() -> None:
    lines = [table.header(), table.row("1", usage(5, 3)), table.row("10b", usage(123456, 3))]
    assert len(lines) == 3 and cells(lines[0])[-1] == table.LAST_TITLE
    ends = {
        len(line.rpartition(last)[0])
        for line, last in zip(lines, ("lost", "none", "none"), strict=True)
    }
    assert len(ends) == 1


def test_bytes_have_three_digits() -> None:
    sizes = {0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1_500_000: "1.43 MiB", 2**40: "1 TiB"}
    for size, text in sizes.items():
        assert table.handed_over(m.TransferReport(size, 1, 1, 0.0, 0.0)) == text
