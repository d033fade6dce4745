"""Death, departure and disagreement of real daemons: a slower answer, the same tokens, nothing
held."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tasuki.client.errors import ClientError
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.proto import inference_pb2 as pb
from tests.harness.daemons import Node, Pair, Question, asked, flags, questions, random_prompt
from tests.harness.pair_moments import (
    LAYERS,
    handed_over,
    in_first_chunk,
    in_transfer,
    read,
)
from tests.harness.processes import gone
from tests.harness.running_nodes import needs_nixl, running
from tests.harness.waiting import until

pytestmark = needs_nixl

LONG, MIDDLE, SHORT, ENDED_EARLY = range(4)
"""Indices of the questions. The last answer is never computed to its end, so it is unknown."""
LOST, CONNECTED = pb.PREFILL_NODE_STATE_LOST, pb.PREFILL_NODE_STATE_CONNECTED
REFUSED = pb.PREFILL_NODE_STATE_REFUSED
ENDLESS = 5000
"""Tokens of an answer that would outlast every deadline here if it were not ended."""


@pytest.fixture(scope="module")
def told() -> tuple[Question, ...]:
    return (*questions((2000, 1000, 600)), Question(random_prompt(6000, 0), ()))


@pytest.fixture(scope="module")
def standing(told: tuple[Question, ...]) -> Iterator[Pair]:
    pair = Pair(told)
    yield pair
    pair.stop()


@pytest.fixture
def pair(standing: Pair) -> Iterator[Pair]:
    """Yield the pair: both nodes alive, connected and at rest, before and after."""
    standing.fix()
    yield standing
    standing.assert_at_rest()


def kill_prefill(pair: Pair) -> None:
    """Kill the prefill node and wait until the decode node notices."""
    pair.prefill.kill()
    until(lambda: pair.prefill_state() == LOST, "the decode node has not noticed")


def test_prefill_dies_in_the_middle_of_the_transfer_and_is_found_again(pair: Pair) -> None:
    stream = in_transfer(pair, LONG)
    kill_prefill(pair)
    assert pair.right(LONG, stream).usage.local_fallback
    pair.decode.assert_at_rest()
    # Without a prefill node no hand-over is tried, so none is lost.
    alone = pair.right(SHORT, pair.ask(SHORT)).usage
    assert alone.prefilled_on == "local" and not alone.local_fallback

    pair.fix()
    handed_over(pair, SHORT)


def test_a_frozen_prefill_node_is_fenced_by_its_lease_and_may_come_back(pair: Pair) -> None:
    stream = in_transfer(pair, LONG)
    os.kill(pair.prefill.pid, signal.SIGSTOP)
    try:
        # It is alive, so only the end of its lease proves that it no longer writes.
        until(lambda: pair.decode.stats().pages["quarantined"] > 0, pair.decode.story)
        assert pair.right(LONG, stream).usage.local_fallback
        pair.decode.assert_at_rest()
    finally:
        os.kill(pair.prefill.pid, signal.SIGCONT)
    until(lambda: pair.prefill_state() == CONNECTED, "not connected again")
    pair.prefill.assert_at_rest()
    handed_over(pair, SHORT)


def test_decode_dies_in_the_middle_of_a_hand_over(pair: Pair) -> None:
    before = pair.decode.arrived()
    streams = [in_first_chunk(pair, LONG), pair.ask(MIDDLE)]
    until(lambda: pair.decode.arrived() > before + 5 * LAYERS, pair.decode.story)
    until(lambda: pair.prefill.requests("Waiting") == 1, pair.prefill.story)
    pair.decode.kill()
    for stream in streams:
        with pytest.raises(ClientError):
            stream.result()
    pair.prefill.assert_at_rest()

    pair.fix()
    handed_over(pair, MIDDLE)


def test_a_client_leaves_while_its_prompt_is_handed_over(pair: Pair) -> None:
    before = pair.prefill.stats().pages["tree"]
    stream = in_transfer(pair, ENDED_EARLY, 2 * LAYERS, ENDLESS)
    stream.cancel()
    until(pair.prefill.at_rest, pair.prefill.story)
    # It stopped before the prompt's end, and the computed part stays.
    assert 0 < pair.prefill.stats().pages["tree"] - before < pair.pages(ENDED_EARLY)
    until(pair.decode.at_rest, pair.decode.story)


def test_sigterm_lets_what_is_in_flight_end(pair: Pair) -> None:
    stream = in_first_chunk(pair, LONG)
    pair.prefill.ask_to_stop()
    late = pair.ask(SHORT)
    usage = pair.right(LONG, stream).usage
    assert usage.prefilled_on == "prefill" and not usage.local_fallback
    # It is answered, accepted before the signal or rejected after it.
    pair.right(SHORT, late)
    assert pair.prefill.stop() == 0
    assert gone(pair.prefill.pid)
    until(lambda: pair.prefill_state() == LOST, "the decode node has not noticed")

    stream = pair.ask(SHORT)
    read(stream, 1)
    pair.decode.ask_to_stop()
    assert pair.right(SHORT, stream).usage.prefilled_on == "local"
    assert pair.decode.stop() == 0
    assert gone(pair.decode.pid)


def test_a_node_of_another_contract_is_refused_by_name(
    told: tuple[Question, ...], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(embedded_model(), other)
    weights = load_file(other / "model.safetensors")
    name = min(weights)
    weights[name].flatten()[0] += 1
    save_file(weights, other / "model.safetensors")

    stretched = tmp_path / "stretched"
    shutil.copytree(embedded_model(), stretched)
    config = json.loads((stretched / "config.json").read_text())
    config["rope_parameters"] |= {"rope_type": "yarn", "factor": 4.0}
    (stretched / "config.json").write_text(json.dumps(config))

    quantised = tmp_path / "quantised"
    quantise_folder(embedded_model(), quantised, RECIPES["fp8"])

    models = (flags(other), flags(dtype="bfloat16"), flags(stretched), flags(quantised))
    prefills = [Node("prefill", *model) for model in models]
    with ExitStack() as stack:
        targets = ",".join(stack.enter_context(running(node)).address for node in prefills)
        decode = stack.enter_context(running(Node("decode", *flags(), "--prefill", targets)))
        question = told[SHORT]
        answer = asked(decode, question.prompt, b"").result()
        assert answer.token_ids == question.tokens
        assert answer.usage.prefilled_on == "local" and not answer.usage.local_fallback
        seen = decode.stats().prefill_nodes
        assert [node.address for node in seen] == [node.address for node in prefills]
        assert [node.state for node in seen] == [REFUSED] * 4
        differing = [{item.field for item in node.differences} for node in seen]
        assert differing[0] == {"weights_digest"}
        assert {"kv_dtype", "conv_dtype"} <= differing[1] and "weights_digest" not in differing[1]
        assert differing[2] == {"constants"}
        assert differing[3] == {"weights_digest", "weights_format"}
        formats = {(i.ours, i.theirs) for i in seen[3].differences if i.field == "weights_format"}
        assert formats == {("plain", "fp8_block+plain")}
        assert all(item.ours != item.theirs for node in seen for item in node.differences)
        for node in prefills:
            assert node.stats().tree["leased_requests"] == 0
            node.assert_at_rest()
        decode.assert_at_rest()
        assert not any(decode.stats().windows.values())
