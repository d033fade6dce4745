"""Two daemons with FP8 rows in their pages. Bytes are sent unchanged, both ways. A node with other
rows is rejected by name."""

import pytest

from tasuki.engine.assembly.parts import build_parts
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import NEW_TOKENS, asked, flags, fleet, meet
from tests.harness.engines import Lone, engine_config
from tests.harness.goldens import cases_of, reference_dir
from tests.harness.waiting import until

MODEL = "small-dense"
FP8 = ("--kv-dtype", "fp8")


@pytest.mark.parametrize("wire", [(), ("--wire-state", "bf16")], ids=["as it lies", "states not"])
def test_turns_go_there_and_back_as_they_lie(wire: tuple[str, ...]) -> None:
    folder = reference_dir(MODEL)
    config = engine_config(folder, kv_dtype="fp8")
    parts = build_parts(config)
    layout = parts.layout
    case = cases_of(MODEL)["long"]
    with fleet() as start:
        prefill = start("prefill", *flags(folder), *FP8, *wire)
        to = ("--prefill", prefill.address, "--local-prefill-tokens", "0")
        decode = start("decode", *flags(folder), *to, *FP8, *wire)
        meet(decode)
        log = list(case.prompt)
        for turn in range(2):
            answer = asked(decode, tuple(log), b"salt").result()
            usage = answer.usage
            assert usage.prefilled_on == "prefill" and not usage.local_fallback
            assert usage.transfer is not None
            if not wire:
                expected = Lone(config, parts=parts).ask(f"t{turn}", log, NEW_TOKENS)
                assert list(answer.token_ids) == expected
                sent = usage.transfer.pages * layout.page_bytes + layout.slot_bytes
                assert usage.transfer.bytes == sent
            assert (usage.pulled is None) == (turn == 0)
            if usage.pulled is not None and not wire:
                assert (usage.pulled.bytes - layout.slot_bytes) % layout.page_bytes == 0
            log += [*answer.token_ids, *case.prompt[:40]]
        for node in (prefill, decode):
            node.assert_at_rest()
        decode.stop()

        other = start("decode", *flags(folder), *to, *wire)
        until(lambda: bool(other.stats().prefill_nodes[0].differences), "not refused")
        (node,) = other.stats().prefill_nodes
        assert node.state == pb.PREFILL_NODE_STATE_REFUSED
        assert [(d.field, d.ours, d.theirs) for d in node.differences] == [
            ("kv_dtype", "float32", "fp8")
        ]
        answer = asked(other, tuple(case.prompt), b"salt").result()
        assert answer.usage.transfer is None and len(answer.token_ids) == NEW_TOKENS
