"""Answers over an inexact wire: from a decode engine behind the layer barrier, and from two daemons
with equal or different settings."""

from collections.abc import Sequence

import numpy as np
import pytest

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt
from tasuki.engine.assembly.parts import asked_model
from tasuki.engine.config import EngineConfig
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import inference_pb2 as pb
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.precision.encoding_source import EncodingSource
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.settings import Precision, WirePrecision, WireSettings
from tests.harness.daemons import Node, asked, flags, fleet, meet, random_prompt
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import TINY, submit, tiny_parts
from tests.harness.loopback_pair import sent_bytes
from tests.harness.running_nodes import needs_nixl
from tests.harness.waiting import until

NAME = "r"
NEW_TOKENS = 24
# bf16 keeps eight bits. The loss in a state moves a logit by no more than this, much less than a
# margin.
TIE = 0.05
TEXTS = [
    "It is a truth universally acknowledged, that a single man in possession of a good fortune ",
    "She was resolved to refuse him; but the evening passed without any occasion for it, and ",
    "My dear Mr. Bennet, said his lady to him one day, have you heard that Netherfield Park ",
]


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP8])
def test_an_early_step_reads_what_the_batch_would_read(precision: Precision) -> None:
    """Ids are poisoned, so a read of data not decoded yet would show."""
    prompt = np.random.default_rng(150).integers(0, TINY["vocab_size"], 150).tolist()
    wire = WireSettings(WirePrecision(precision, precision))
    told = {}
    for tail_seconds in (0.0, 10.0):
        with engine_pair(tiny_parts(), tiny_parts(), wire=wire) as pair:
            pair.link.bytes_per_second = 2e6
            transfer = pair.hand_over(submit(NAME, prompt, 6))
            pair.ready(transfer, tail_seconds)
            pair.done(transfer)
            if tail_seconds:
                pair.step_ended()
            pair.decode.run()
            told[tail_seconds] = pair.decode.tokens(NAME)
            assert pair.early.counters["joined"] == (1 if tail_seconds else 0)
            chunk_source = pair.sender._arenas[0].chunk_source
            assert isinstance(chunk_source, EncodingSource)
            assert chunk_source.cells.in_use == 0
            pair.decode.assert_at_rest()
            pair.prefill.assert_at_rest()
    assert told[0.0] == told[10.0]
    assert len(told[0.0]) == 6


def served_layout() -> CacheLayout:
    """Return the layout of the daemons' arenas."""
    config = EngineConfig(model=str(embedded_model()), dtype="float32")
    return asked_model(config).cache_layout("float32", "float32", "float32")


def answers(node: Node, texts: Sequence[str]) -> list[Answer]:
    # Longer than a page, so KV of some pages is sent too.
    return [
        node.client.generate(
            Prompt(text=text * 5), max_new_tokens=NEW_TOKENS, ignore_eos=True
        ).result()
        for text in texts
    ]


def assert_equal_up_to_near_ties(exact: Answer, got: Answer) -> None:
    for index, (ours, theirs) in enumerate(zip(exact.token_ids, got.token_ids, strict=True)):
        if ours != theirs:
            assert exact.margins[index] < TIE, f"token {index} of {exact.token_ids}"
            return


@needs_nixl
def test_a_session_of_fp8_travels_there_and_back_again() -> None:
    """Every turn is handed over after all earlier ones were pulled, each with the bytes of fp8."""
    fp8 = ("--wire-kv", "fp8", "--wire-state", "fp8")
    layout = served_layout()
    units = WireUnits.of(layout, WirePrecision(Precision.FP8, Precision.FP8))
    page, states = sent_bytes(units, 1, state=False), sent_bytes(units, 0)
    with fleet() as start:
        prefill = start("prefill", *flags(), *fp8)
        to = ("--prefill", prefill.address, "--local-prefill-tokens", "0")
        decode = start("decode", *flags(), *to, *fp8)
        meet(decode)
        log = random_prompt(300, seed=1)
        for number in range(4):
            usage = (answer := asked(decode, log, b"salt").result()).usage
            assert usage.prefilled_on == "prefill" and not usage.local_fallback
            assert usage.transfer is not None
            assert usage.transfer.bytes == usage.transfer.pages * page + states
            assert (usage.pulled is None) == (number == 0)
            if usage.pulled is not None:
                assert usage.hit is not None
                assert usage.pulled.tokens == usage.hit.usable_tokens >= 300
                assert (usage.pulled.bytes - states) % page == 0
            log += answer.token_ids + random_prompt(40, seed=number)
        for node in (prefill, decode):
            node.assert_at_rest()


@needs_nixl
def test_two_daemons_answer_alike_with_a_state_of_half_the_bytes() -> None:
    bf16 = ("--wire-state", "bf16")
    with fleet() as start:
        prefill = start("prefill", *flags(), *bf16)
        to = ("--prefill", prefill.address, "--local-prefill-tokens", "0")
        decode = start("decode", *flags(), *to, *bf16)
        meet(decode)
        got = answers(decode, TEXTS)
        assert all(answer.usage.prefilled_on == "prefill" for answer in got)
        prefill.assert_at_rest()
        decode.assert_at_rest()
        decode.stop()

        # The same prefill node rejects a node without this setting.
        other = start("decode", *flags(), *to)
        until(lambda: bool(other.stats().prefill_nodes[0].differences), "not refused")
        (node,) = other.stats().prefill_nodes
        assert node.state == pb.PREFILL_NODE_STATE_REFUSED
        assert [(d.field, d.ours, d.theirs) for d in node.differences] == [
            ("wire_state", "exact", "bf16")
        ]
        exact = answers(other, TEXTS)
    assert all(answer.usage.transfer is None for answer in exact)
    for ours, theirs in zip(exact, got, strict=True):
        assert_equal_up_to_near_ties(ours, theirs)
    layout = served_layout()
    units = WireUnits.of(layout, WirePrecision(state=Precision.BF16))
    states = sent_bytes(units, 0)
    assert states < 0.6 * layout.slot_bytes
    for answer in got:
        assert answer.usage.transfer is not None
        pages = -(-answer.usage.prompt_tokens // 64)
        assert answer.usage.transfer.bytes == pages * layout.page_bytes + states
