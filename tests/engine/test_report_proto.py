"""One definition and one converter serve both protocols; the bytes are those of the two before."""

from dataclasses import replace

import pytest
from google.protobuf.message import Message

from tasuki.engine import messages as m
from tasuki.engine.messages import proto
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.proto import handover_pb2, inference_pb2, report_pb2

EVICTION = m.Eviction(7, "checkpoint", "turn_end", 640, 1.5, 0.25, "thief")
FORGOTTEN = m.Eviction(8, "pages", None, 64, 0.5, None, None)
LOST = m.EvictedCheckpoint(640, 3.5, EVICTION)
HIT = m.HitBreakdown(900, 700, 128, {"new": 772}, "branch", LOST)
IN_PAGES = m.HitBreakdown(900, 0, 0, {"new": 900}, None)
TRANSFER = m.TransferReport(2**40, 3, 12, 0.5, 0.25)
PULLED = m.PullReport(64, 4096, 0.125)
ROUTE = m.RouteReport("there", {"here": 2.0})
USAGE = m.Usage(900, 5, HIT, TRANSFER, "p0", False, 0.5, 1.0, PULLED, ROUTE)
# Serialised when each protocol had definitions of its own.
USAGE_BYTES = bytes.fromhex(
    "08840710051a5f08840710bc0518800122080a036e65771084062a066272616e636832420880051100000000"
    "00000c401a340807120a636865636b706f696e741a087475726e5f656e6420800529000000000000f83f3100"
    "0000000000d03f3a057468696566221d088080808080201003180c21000000000000e03f29000000000000d0"
    "3f2a02703039000000000000e03f41000000000000f03f4a0e084010802019000000000000c03f52180a0574"
    "68657265120f0a0468657265110000000000000040"
)
READY_BYTES = bytes.fromhex(
    "0803100519000000000000e0bf21000000000000e03f2a6e08840710bc0518800122080a036e65771084062a"
    "066272616e63683242088005110000000000000c401a340807120a636865636b706f696e741a087475726e5f"
    "656e6420800529000000000000f83f31000000000000d03f3a0574686965663a0d08840722080a036e657710"
    "8407320e084010802019000000000000c03f3a180a057468657265120f0a0468657265110000000000000040"
    "41000000000000e83f"
)
DONE_BYTES = bytes.fromhex("08031a1d088080808080201003180c21000000000000e03f29000000000000d03f")


def ready() -> handover_pb2.Ready:
    return handover_pb2.Ready(
        generation=3,
        token=5,
        logprob=-0.5,
        margin=0.5,
        hit=proto.HIT.to_wire(replace(HIT, in_pages=IN_PAGES)),
        pulled=proto.PULLED.to_wire(PULLED),
        tail_seconds=0.75,
        route=proto.ROUTE.to_wire(ROUTE),
    )


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (proto.USAGE.to_wire(USAGE), USAGE_BYTES),
        (ready(), READY_BYTES),
        (handover_pb2.Done(generation=3, report=proto.TRANSFER.to_wire(TRANSFER)), DONE_BYTES),
    ],
    ids=["usage", "ready", "done"],
)
def test_a_node_of_the_version_before_reads_and_is_read(message: Message, wire: bytes) -> None:
    assert message.SerializeToString(deterministic=True) == wire
    assert type(message).FromString(wire) == message


def test_a_choice_comes_back_as_it_went() -> None:
    bid = m.PrefillBid("p0", "a:1", 64, 0.5, 0.25, 0.125, 9.0, True)
    choice = m.PrefillChoice("cost", (bid, replace(bid, chosen=False)), 12, 64, 0.5, "b:1")
    usage = replace(USAGE, prefill_choice=choice)
    assert proto.USAGE.from_wire(proto.USAGE.to_wire(usage)).prefill_choice == choice


def test_a_usage_comes_back_as_it_went() -> None:
    assert proto.USAGE.from_wire(proto.USAGE.to_wire(USAGE)) == USAGE
    uses = (m.DraftUse("mtp", (9, 7), (6, 2)), m.DraftUse("tree", (3,), (0,)))
    drafted = replace(USAGE, drafted_tokens=19, accepted_tokens=8, drafts=uses)
    assert proto.USAGE.from_wire(proto.USAGE.to_wire(drafted)) == drafted
    ended_early = m.Usage(900, 0, None, None, "local", True, 0.5, 1.0)
    assert proto.USAGE.from_wire(proto.USAGE.to_wire(ended_early)) == ended_early


def test_a_client_gets_no_breakdown_by_pages_beside_its_own() -> None:
    whole = m.HitBreakdown(900, 700, 128, {"new": 772}, None, in_pages=IN_PAGES)
    assert not proto.USAGE.to_wire(m.Usage(1, 1, whole, None, "", False, 0, 0)).hit.HasField(
        "in_pages"
    )
    assert proto.HIT.from_wire(proto.HIT.to_wire(whole)) == whole


def test_a_breakdown_inside_breakdowns_is_read_one_deep() -> None:
    deep = report_pb2.HitBreakdown(prompt_tokens=1)
    for _ in range(40):
        deep = report_pb2.HitBreakdown(prompt_tokens=1, in_pages=deep)
    read = proto.HIT.from_wire(deep)
    assert read.in_pages is not None and read.in_pages.in_pages is None


@pytest.mark.parametrize("eviction", [EVICTION, FORGOTTEN])
def test_an_eviction_comes_back_with_what_it_lacks(eviction: m.Eviction) -> None:
    assert proto.EVICTION.from_wire(proto.EVICTION.to_wire(eviction)) == eviction


@pytest.mark.parametrize("reason", m.FinishReason)
def test_every_end_has_a_number(reason: m.FinishReason) -> None:
    wire = proto.FINISHED.to_wire(m.Finished(m.RequestId("r"), reason, USAGE))
    assert proto.finish_reason_from_proto(wire.reason) is reason


def test_a_tickets_sampling_comes_back_exactly() -> None:
    # A client's protocol rounds temperatures to 32 bits; a transfer request must not.
    sampling = SamplingParams(
        *(9, 0.7, 40, 0.9, 2**40, (3, 5), True),
        min_p=0.1,
        presence_penalty=0.3,
        frequency_penalty=-0.7,
        repetition_penalty=1.1,
        logit_bias=((4, 0.1), (2, -100.0)),
        min_tokens=7,
        bad_words=((1,), (2, 3)),
        allowed_token_ids=(8, 9),
        top_logprobs=20,
        grammar=Grammar(GrammarKind.REGEX, "[a-z]*", closing=0, opening=7, gap=(3, 3)),
        thinking=ThinkingBudget(3, (4, 0, 6), 0, 7),
    )
    assert proto.sampling_from_proto(proto.SAMPLING.to_wire(sampling)) == sampling
    opened = replace(sampling, thinking=ThinkingBudget(0, (5,), 5))
    assert proto.sampling_from_proto(proto.SAMPLING.to_wire(opened)) == opened
    plain = SamplingParams(grammar=Grammar(GrammarKind.JSON_SCHEMA, "{}"))
    assert proto.sampling_from_proto(proto.SAMPLING.to_wire(plain)) == plain
    with pytest.raises(ValueError, match="max_new_tokens"):
        proto.sampling_from_proto(handover_pb2.Sampling())
    longest = SamplingParams(max_new_tokens=proto.MOST_ANSWER_TOKENS)
    assert proto.sampling_from_proto(proto.SAMPLING.to_wire(longest)) == longest
    over = handover_pb2.Sampling(max_new_tokens=proto.MOST_ANSWER_TOKENS + 1)
    with pytest.raises(ValueError, match="max_new_tokens must be at most 1073741824 in a hand"):
        proto.sampling_from_proto(over)
    wire = proto.SAMPLING.to_wire(plain)
    wire.grammar.kind = "poem"
    with pytest.raises(ValueError, match="grammar is of a kind not known here: 'poem'"):
        proto.sampling_from_proto(wire)


@pytest.mark.parametrize(
    "name", ["HitBreakdown", "LostState", "Eviction", "TransferReport", "Pulled", "Route"]
)
def test_who_imported_a_report_from_the_clients_protocol_still_can(name: str) -> None:
    assert getattr(inference_pb2, name) is getattr(report_pb2, name)
