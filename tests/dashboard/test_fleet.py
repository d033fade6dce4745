"""Tests of the fleet page's figures from real /metrics: rates, percentiles, trouble, links and
callers."""

import json
import random
import time
from dataclasses import replace

import pytest

from tasuki.dashboard.fleet.callers import MOST_CALLERS, Targets
from tasuki.dashboard.fleet.fleet import MOST_ROWS, ORDERS, Fleet
from tasuki.dashboard.fleet.links import MOST_LINES
from tasuki.dashboard.fleet.memory import LARGEST, MOST_TIERS
from tasuki.dashboard.fleet.samples import (
    FIRST_TOKEN,
    LONGEST_LABEL,
    MOST_SERIES,
    NODE,
    PAGES,
    SLOTS,
    SPAN_SECONDS,
    STARTED,
    WANTED,
    LabelTexts,
    RecentSamples,
    buckets_of,
    by_label,
    labels_of,
    observed,
    one,
    quantile,
    read_samples,
    share_within,
    together,
)
from tasuki.dashboard.metrics.metrics_reference import reference
from tasuki.engine import messages as m
from tests.harness.imagined_fleet import (
    CALLERS,
    MODEL,
    ImaginedNode,
    address_of,
    imagined_nodes,
    lived,
    tiers_of,
)

NOW = 1_700_000_000.0
SLAB = 38 * 2**20


def answered(fleet: Fleet, node: ImaginedNode, address: str, at: float) -> None:
    text = node.text(random.Random(1))
    fleet.answered(address, NOW + at, at, read_samples(text, WANTED))


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """Return a fleet of two prefill and three decode nodes, the last of them in trouble, and of a
    dead node."""
    return lived(imagined_nodes(2, 3, NOW), NOW, seconds=120)


def test_every_metric_that_it_reads_is_exported_and_documented() -> None:
    documented = reference()
    for name in WANTED:
        assert f"`{name.removesuffix('_bucket')}`" in documented, name


def test_rates_are_what_was_added_in_the_last_minute() -> None:
    node = ImaginedNode("one", "decode", NOW, load=0.0)
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80"])
    answered(fleet, node, "10.0.0.1:80", 0.0)
    assert fleet.nodes("", "name", 0, 1)["rows"][0]["output_rate"] is None
    node.exposition.count_tokens(1000)
    for at in range(5, 41, 5):
        answered(fleet, node, "10.0.0.1:80", float(at))
    assert fleet.nodes("", "name", 0, 1)["rows"][0]["output_rate"] == 1000 / 40
    for at in range(45, 121, 5):
        answered(fleet, node, "10.0.0.1:80", float(at))
    row = fleet.nodes("", "name", 0, 1)["rows"][0]
    assert row["output_rate"] == 0 and row["name"] == "one" and row["model"] == MODEL
    assert row["started_at"] == NOW and row["level"] == "fine" and row["hit"] is None


def test_choices_are_shown_where_a_node_makes_some() -> None:
    node = ImaginedNode("one", "decode", NOW)
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80"])
    for at, times in ((0.0, 0), (5.0, 10)):
        more = (
            f'tasuki_prefill_choices_total{{reason="cost"}} {9 * times}\n'
            f'tasuki_prefill_choices_total{{reason="alone"}} {times}\n'
            f"tasuki_prefill_choice_regret_seconds_total {0.5 * times}\n"
            f"tasuki_prefill_choice_expected_tokens_total {1000 * times}\n"
            f"tasuki_prefill_choice_found_tokens_total {900 * times}\n"
        )
        text = node.text(random.Random(1)) + more
        fleet.answered("10.0.0.1:80", NOW + at, at, read_samples(text, WANTED))
    assert fleet.nodes("", "name", 0, 1)["rows"][0]["routing"] == {
        "reasons": {"cost": 90, "alone": 10},
        "regret_seconds": 0.05,
        "gap": 0.1,
    }


def test_a_node_that_began_anew_has_no_negative_rates() -> None:
    recent = RecentSamples()
    for at, started, tokens in ((0.0, 1, 500), (5.0, 1, 600), (10.0, 2, 10), (15.0, 2, 60)):
        text = f"{STARTED} {started}\ntasuki_generated_tokens_total {tokens}"
        recent.take(at, read_samples(text, WANTED))
    assert recent.gained is not None and recent.gained.rate("tasuki_generated_tokens_total") == 10


def test_a_minute_is_kept_in_few_samples() -> None:
    recent = RecentSamples()
    for at in range(0, 600):
        recent.take(at / 2, read_samples(f"tasuki_generated_tokens_total {at}", WANTED))
    assert recent.gained is not None
    assert SPAN_SECONDS <= recent.gained.seconds < 1.5 * SPAN_SECONDS
    assert recent.gained.rate("tasuki_generated_tokens_total") == pytest.approx(2)
    assert len(recent._kept) < 8


def test_percentiles_lie_in_their_bucket() -> None:
    node = ImaginedNode("one", "decode", NOW)
    node.live(200, 1.0, random.Random(3))
    samples = read_samples(node.text(random.Random(3)), WANTED)
    buckets = buckets_of(samples, FIRST_TOKEN)
    assert observed(buckets) == node.ended > 300
    middle, late = quantile(buckets, 0.5), quantile(buckets, 0.95)
    assert middle is not None and late is not None and 0.1 < middle < 0.5 < late < 5
    within = share_within(buckets, late)
    assert within == pytest.approx(0.95, abs=0.001)
    assert together([buckets, buckets]) == {bound: 2 * n for bound, n in buckets.items()}
    assert quantile({}, 0.5) is None and share_within({}, 1.0) is None


def test_what_is_longer_than_every_bound_is_not_called_shorter() -> None:
    buckets = {1.0: 0.0, float("inf"): 4.0}
    assert quantile(buckets, 0.5) == 1.0 and share_within(buckets, 5.0) == 0.0


def test_the_worst_nodes_come_first_with_the_reason(fleet: Fleet) -> None:
    dead, slow, *rest = fleet.nodes("", "trouble", 0, 10)["rows"]
    assert dead["level"] == "dead" and dead["trouble"][0]["text"] == "connection refused"
    assert dead["silent_since"] < NOW and dead["output_rate"] is None
    assert slow["name"] == "decode-3" and slow["level"] == "faulty"
    told = [trouble["text"] for trouble in slow["trouble"]]
    assert told[0] == "1 of 2 links not connected" and "TTFT p95 over 2 s" in told
    assert {row["level"] for row in rest} == {"fine"} and len(rest) == 4


def test_the_sums_are_the_nodes_together(fleet: Fleet) -> None:
    summary = fleet.summary(NOW)
    rows = fleet.nodes("", "name", 0, 10)["rows"]
    totals = summary["totals"]
    assert totals["nodes"] == 6 and totals["levels"] == {"dead": 1, "faulty": 1, "fine": 4}
    assert totals["roles"] == {"prefill": 2, "decode": 3} and totals["models"] == [MODEL]
    assert totals["output_rate"] == sum(row["output_rate"] or 0 for row in rows) > 100
    # Only decode nodes choose prefill nodes.
    assert {row["role"] for row in rows if row["routing"]} == {"decode"}
    asked = [row["hit"] for row in rows if row["role"] == "decode"]
    hit = totals["hit"]
    assert hit["prompt"] == sum(one["prompt"] for one in asked)
    assert hit["usable"] + sum(hit["lost"].values()) == hit["prompt"]
    assert len(summary["series"]["at"]) == len(summary["series"]["ttft_p95"]) == 25


def test_links_are_a_matrix_of_what_decode_nodes_count(fleet: Fleet) -> None:
    view = fleet.links("")
    assert (view["prefill_nodes"], view["decode_nodes"]) == (2, 3)
    assert (view["links"], view["lost"]) == (6, 1)
    assert view["rows"] == ["prefill-2", "prefill-1"] and view["columns"][0]["name"] == "decode-3"
    lost, *live = sorted(view["cells"], key=lambda cell: cell["state"] == "connected")
    assert lost["state"] == "lost" and lost["row"] == "prefill-2"
    for cell in live:
        assert cell["state"] == "connected" and cell["bytes_rate"] > 1e6
        assert 0 < cell["exposed_seconds"] < 0.1
    assert {cell["row"] for cell in fleet.links("prefill-1")["cells"]} == {"prefill-1"}


def test_callers_furthest_from_their_targets_come_first(fleet: Fleet) -> None:
    view = fleet.callers("")
    assert {row["caller"] for row in view["rows"]} == set(CALLERS)
    worst = view["rows"][0]
    assert worst["caller"] == "evals" and 0.3 < worst["ttft_kept"] < 1
    assert sum(row["per_minute"] for row in view["rows"]) > 60
    assert [row["caller"] for row in fleet.callers("AGE")["rows"]] == ["agents"]


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_holds_every_node_once(fleet: Fleet, order: str) -> None:
    rows = fleet.nodes("", order, 0, 10)["rows"]
    assert {row["address"] for row in rows} == {address_of(number) for number in range(6)}


@pytest.mark.parametrize(
    ("wanted", "matched"),
    [("decode", 3), ("DEAD", 1), ("decode ok", 2), ("10.0.0.1:", 1), ("x", 0)],
)
def test_a_filter_finds_nodes_by_all_its_words(fleet: Fleet, wanted: str, matched: int) -> None:
    assert fleet.nodes(wanted, "name", 0, 10)["matched"] == matched


def test_a_node_that_answers_again_is_no_more_dead() -> None:
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80"])
    node = ImaginedNode("one", "decode", NOW)
    answered(fleet, node, "10.0.0.1:80", 0.0)
    for at in (5.0, 10.0):
        fleet.failed("10.0.0.1:80", NOW + at, "no answer within 3 s")
    row = fleet.nodes("", "name", 0, 1)["rows"][0]
    assert row["silent_since"] == NOW + 5 and row["answered_at"] == NOW and row["name"] == "one"
    answered(fleet, node, "10.0.0.1:80", 15.0)
    row = fleet.nodes("", "name", 0, 1)["rows"][0]
    assert row["level"] == "fine" and row["silent_since"] is None and row["output_rate"] is None


def test_a_node_that_is_no_member_any_more_is_forgotten() -> None:
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80", "10.0.0.2:80"])
    fleet.set_members(["10.0.0.2:80"])
    fleet.failed("10.0.0.1:80", NOW, "gone")
    assert [row["address"] for row in fleet.nodes("", "name", 0, 9)["rows"]] == ["10.0.0.2:80"]


def test_targets_decide_what_is_slow() -> None:
    node = ImaginedNode("one", "decode", NOW)
    fleet = Fleet(Targets(first_token=0.001, per_token=60.0))
    fleet.set_members(["10.0.0.1:80"])
    for at in (0.0, 5.0):
        answered(fleet, node, "10.0.0.1:80", at)
        node.live(20, 1.0, random.Random(2))
    answered(fleet, node, "10.0.0.1:80", 10.0)
    told = fleet.nodes("", "name", 0, 1)["rows"][0]["trouble"]
    assert told == [{"level": "slow", "text": "TTFT p95 over 1 ms"}]


def test_refusals_are_trouble_where_the_node_was_too_busy() -> None:
    node = ImaginedNode("one", "decode", NOW)
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80"])
    for at in (0.0, 5.0):
        answered(fleet, node, "10.0.0.1:80", at)
        for kind in (m.ErrorKind.OVERLOADED, m.ErrorKind.QUEUE_TIMEOUT, m.ErrorKind.TOO_LONG):
            error = m.RequestError(kind, "why")
            node.exposition.observe(m.Rejected(m.RequestId("r"), error))
    told = fleet.nodes("", "name", 0, 1)["rows"][0]["trouble"]
    assert told == [{"level": "slow", "text": "2 requests refused in a minute"}]


def test_labels_are_kept_once_however_many_nodes_write_them() -> None:
    texts = LabelTexts()
    line = 'tasuki_cache_pages{owner="free"} 1'
    one_node, other = (read_samples(line, WANTED, texts) for _ in range(2))
    (kept,), (again,) = (samples["tasuki_cache_pages"] for samples in (one_node, other))
    assert kept is again


@pytest.mark.slow
def test_a_thousand_nodes_are_shown_in_little_and_at_once() -> None:
    prefill = {f"prefill-{number}": "connected" for number in range(300)}
    links = "".join(
        f'tasuki_handover_link_state{{peer="{name}",address="a:1",state="{state}"}} 1\n'
        f'tasuki_handover_link_bytes_total{{peer="{name}"}} 5\n'
        for name, state in prefill.items()
    )
    told = "".join(
        f'tasuki_caller_requests_finished_total{{caller="{number}"}} 1\n'
        f'tasuki_caller_time_to_first_token_seconds_bucket{{caller="{number}",le="+Inf"}} 1\n'
        for number in range(MOST_CALLERS)
    )
    fleet = Fleet()
    addresses = [address_of(number) for number in range(1000)]
    fleet.set_members(addresses)
    text = ImaginedNode("n", "decode", NOW).text(random.Random(1)) + links + told
    samples = read_samples(text, WANTED)
    for at in (0.0, 5.0):
        for address in addresses:
            fleet.answered(address, NOW, at, samples)
    begun = time.process_time()
    shown = [
        fleet.summary(NOW),
        fleet.nodes("", "trouble", 0, MOST_ROWS),
        fleet.callers(""),
    ]
    assert time.process_time() - begun < 1.0
    matrix = fleet.links("")
    assert len(matrix["rows"]) == len(matrix["columns"]) == MOST_LINES
    assert matrix["links"] == 300_000 and len(matrix["cells"]) == MOST_LINES**2
    for view in (*shown, matrix):
        assert len(json.dumps(view)) < 120_000
    assert shown[2]["known"] == MOST_CALLERS
    assert shown[1]["matched"] == 1000 and len(shown[1]["rows"]) == MOST_ROWS


def test_labels_are_read_as_they_were_written() -> None:
    name = 'a "quoted\\" {name}\nof <two> lines'
    node = ImaginedNode(name, "decode", NOW)
    assert labels_of(read_samples(node.text(random.Random(1)), WANTED), NODE)["node"] == name


@pytest.mark.parametrize(
    "text", ["", "<html><script>alert(1)</script>", '{"tasuki": 1}', "\0\xff" * 999, "go_gc 1"]
)
def test_what_is_no_exposition_of_ours_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no metric of tasuki"):
        read_samples(text, WANTED)


def test_what_is_kept_of_a_hostile_exposition_is_bounded() -> None:
    many = "".join(
        f'tasuki_handover_link_state{{peer="{number}",state="lost"}} 1\n' for number in range(9999)
    )
    odd = (
        f'tasuki_node_info{{node="{"x" * 3000}"}} 1\n'
        "tasuki_generated_tokens_total nan\n"
        'tasuki_requests{state="Waiting"} 1e999\n'
        "tasuki_requests{state= 1\n"
        'tasuki_requests{{{state="a"}} 1\n'
        "tasuki_cache_integrity\n"
        f"tasuki_cache_integrity {'1' * 9999}\n"
        'tasuki_cache_pages{owner="free" 4\n'
    )
    samples = read_samples(many + odd, WANTED)
    assert len(samples["tasuki_handover_link_state"]) == MOST_SERIES
    assert len(labels_of(samples, NODE)["node"]) == LONGEST_LABEL
    assert one(samples, "tasuki_generated_tokens_total") is None
    assert "tasuki_cache_integrity" not in samples
    assert by_label(samples, "tasuki_requests", "state").get("Waiting") is None


def test_arena_and_tiers_are_shown_in_bytes_and_what_moves() -> None:
    fleet = Fleet()
    node = ImaginedNode("one", "prefill", NOW, tiers=tiers_of(("host", 4), ("disk", 16)))
    fleet.set_members(["10.0.0.1:80", "10.0.0.2:80"])
    answered(fleet, node, "10.0.0.1:80", 0.0)
    (row,) = [row for row in fleet.nodes("", "name", 0, 9)["rows"] if row["memory"]]
    assert [tier["loaded_rate"] for tier in row["memory"][1:]] == [None, None]
    host, disk = node.tiers
    moved = replace(host, bytes={"loaded": 5_000_000, "written": 2_500_000})
    node.tiers = (moved, disk)
    answered(fleet, node, "10.0.0.1:80", 5.0)
    (row,) = [row for row in fleet.nodes("", "name", 0, 9)["rows"] if row["memory"]]
    arena, host_row, disk_row = row["memory"]
    assert (arena["name"], arena["size"]) == ("arena", 862 * SLAB)
    assert host_row["size"] == host.slabs["total"] * SLAB <= 4 * 2**30
    assert host_row["used"] == (host.slabs["total"] - host.slabs["free"]) * SLAB
    assert (host_row["loaded_rate"], host_row["written_rate"]) == (1_000_000, 500_000)
    assert (disk_row["loaded_rate"], disk_row["written_rate"]) == (0, 0)
    sizes = fleet.summary(NOW)["totals"]["memory"]
    assert sizes == {tier["name"]: tier["size"] for tier in row["memory"]}
    use = fleet.summary(NOW)["totals"]["arena"]
    assert use == {part: arena[part] for part in ("in_use", "cached", "free", "size")}
    assert sum(use[part] for part in ("in_use", "cached", "free")) == pytest.approx(use["size"])
    samples = read_samples(node.text(random.Random(1)), WANTED)
    pages, slots = (by_label(samples, name, "owner") for name in (PAGES, SLOTS))
    held = sum(pages[owner] / 7 + slots[owner] for owner in ("working", "pinned", "in_transfer"))
    assert arena["in_use"] == pytest.approx(held * SLAB) and use["cached"] > use["in_use"] > 0


def test_a_node_without_tiers_or_of_an_earlier_version_shows_none() -> None:
    fleet = Fleet()
    fleet.set_members(["10.0.0.1:80", "10.0.0.2:80"])
    answered(fleet, ImaginedNode("one", "decode", NOW), "10.0.0.1:80", 0.0)
    earlier = read_samples('tasuki_cache_slabs{use="free"} 3\n', WANTED)
    fleet.answered("10.0.0.2:80", NOW, 0.0, earlier)
    arena, nothing = [row["memory"] for row in fleet.nodes("", "name", 0, 9)["rows"]][::-1]
    assert [tier["name"] for tier in arena] == ["arena"] and nothing is None


def test_tiers_that_a_node_makes_up_are_bounded() -> None:
    text = 'tasuki_cache_slab_bytes 1e300\ntasuki_cache_slabs{use="free"} 5\n'
    text += 'tasuki_cache_slabs{use="pages"} 1\ntasuki_cache_each_bytes{kind="page"} 1e300\n'
    text += 'tasuki_cache_pages{owner="working"} 1e300\n'
    for number in range(900):
        text += f'tasuki_tier_slabs{{tier="{number}",use="free"}} 1e300\n'
        huge = (1e300, -1e300)[number % 2]
        text += f'tasuki_tier_slabs{{tier="{number}",use="total"}} {huge}\n'
        text += f'tasuki_tier_bytes_total{{tier="{number}",direction="loaded"}} {huge}\n'
    fleet = Fleet()
    addresses = [f"10.0.0.{number}:80" for number in range(1, 4)]
    fleet.set_members(addresses)
    for address in addresses:
        for at in (0.0, 5.0):
            fleet.answered(address, NOW + at, at, read_samples(text, WANTED))
    summary = json.dumps(fleet.summary(NOW), allow_nan=False)
    rows = json.dumps(fleet.nodes("", "name", 0, 9), allow_nan=False)
    for row in json.loads(rows)["rows"]:
        assert len(row["memory"]) == 1 + MOST_TIERS
        arena, *below = row["memory"]
        assert 0 <= arena["in_use"] <= arena["size"] <= LARGEST
        assert all(0 <= tier["used"] <= tier["size"] <= LARGEST for tier in below)
    assert len(json.loads(summary)["totals"]["memory"]) == 1 + MOST_TIERS
