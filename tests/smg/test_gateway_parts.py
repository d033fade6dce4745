"""Tests of the gateway service's parts: messages to a gateway, and the reading of its requests."""

import asyncio
import hashlib
import io
import zipfile
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, TreeConfig, prefix_hashes
from tasuki.pycache.packed import pack_events
from tasuki.server.errors import InvalidRequest, PictureMissing
from tasuki.server.smg.gateway_model import GatewayModel
from tasuki.server.text.grammars.asked_grammar import check_followable
from tasuki.server.text.tokenizer import IncrementalDetokenizer, Tokenizer
from tasuki.server.unread_answer import AnswerPart
from tests.harness.grpc_fixtures import text_codec, usage, write_tokenizer
from tests.harness.smg_process import require_protocol
from tests.harness.trees import branching_prompt

require_protocol()

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb  # noqa: E402

from tasuki.server.smg.generate_messages import (  # noqa: E402
    GatewayAnswer,
    read_gateway_request,
)
from tasuki.server.smg.kv_events import (  # noqa: E402
    Announced,
    Change,
    Cleared,
    GatewayEvents,
    UsableBlocks,
    Withdrawn,
    block_hash,
    namespace_of,
)
from tasuki.server.smg.service import archive_chunks, loads_message, tokenizer_archive  # noqa: E402

MODEL = GatewayModel(Path("model"), "model", "qwen3_5_text", (), "float32", 320, 100, (2,))
Parts = AsyncGenerator[AnswerPart, None]


def request(**changes: object) -> pb.GenerateRequest:
    values = {"request_id": "r", "tokenized": pb.TokenizedInput(input_ids=[5, 6, 7])} | changes
    return pb.GenerateRequest(**values)  # type: ignore[arg-type]


def test_what_is_left_out_is_openai_s_default() -> None:
    asked = read_gateway_request(request(stream=True), MODEL)
    sampling = asked.submit.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert sampling.max_new_tokens == 97 and asked.submit.gateway_transfer is None and asked.streams
    again = read_gateway_request(request(), MODEL).submit.sampling
    assert again.seed != sampling.seed


@pytest.mark.parametrize("top_k", [-1, 0, 320, 2**31 - 1])
def test_every_token_is_every_token_however_it_is_written(top_k: int) -> None:
    wanted = pb.SamplingParams(top_k=top_k, top_p=1e-30, temperature=1e-30)
    sampling = read_gateway_request(request(sampling_params=wanted), MODEL).submit.sampling
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (0, 1e-6, 0.0)


@pytest.mark.parametrize("token", [262, 263])
def test_a_placeholder_of_a_picture_is_refused_by_its_place(token: int) -> None:
    model = replace(MODEL, placeholders=frozenset({262, 263}))
    with pytest.raises(PictureMissing, match=rf"tokenized.input_ids\[1\] is {token}") as refused:
        read_gateway_request(request(tokenized=pb.TokenizedInput(input_ids=[5, token])), model)
    assert refused.value.field == "tokenized.input_ids[1]"
    # Without placeholders in the config, the id is text.
    text = request(tokenized=pb.TokenizedInput(input_ids=[5, token]))
    assert read_gateway_request(text, MODEL).submit.prompt.tolist() == [5, token]


def test_a_room_names_its_prefill_node() -> None:
    transfer = pb.KvBootstrapInfo(bootstrap_host="::1", bootstrap_port=7, bootstrap_room=2**63 - 1)
    told = read_gateway_request(request(kv_bootstrap_info=transfer), MODEL).submit.gateway_transfer
    assert told == m.GatewayTransfer(m.TransferId(2**63 - 1), "[::1]:7")


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (request(tokenized=pb.TokenizedInput()), "input_ids is empty"),
        (request(tokenized=pb.TokenizedInput(input_ids=[2**32 - 1])), "vocabulary"),
        (request(tokenized=pb.TokenizedInput(input_ids=[1] * 100)), "input_ids has 100"),
        (
            request(sampling_params=pb.SamplingParams(structural_tag="{}")),
            "sampling_params.structural_tag",
        ),
        (request(sampling_params=pb.SamplingParams(json_schema="{")), "sampling_params.json_sch"),
        (request(sampling_params=pb.SamplingParams(custom_params={"a": 1})), "custom_params"),
        (request(sampling_params=pb.SamplingParams(n=2)), "sampling_params.n"),
        (request(sampling_params=pb.SamplingParams(min_p=1.5)), "sampling_params.min_p"),
        (request(sampling_params=pb.SamplingParams(presence_penalty=3)), "presence_penalty"),
        (request(sampling_params=pb.SamplingParams(frequency_penalty=-3)), "frequency_penalty"),
        (request(sampling_params=pb.SamplingParams(repetition_penalty=-1)), "repetition_penalty"),
        (request(sampling_params=pb.SamplingParams(min_new_tokens=999)), "sampling_params.min_"),
        (request(sampling_params=pb.SamplingParams(top_p=0)), "sampling_params.top_p"),
        (request(sampling_params=pb.SamplingParams(max_new_tokens=0)), "max_new_tokens"),
        (request(sampling_params=pb.SamplingParams(logit_bias={"x": 1})), "logit_bias"),
        (request(sampling_params=pb.SamplingParams(logit_bias={"3": 101})), "logit_bias"),
        (request(sampling_params=pb.SamplingParams(logit_bias={"999": 1})), "logit_bias"),
        (request(sampling_params=pb.SamplingParams(stop=[""])), "stop"),
        (request(top_logprobs_num=21), "top_logprobs_num"),
        (request(top_logprobs_num=-1), "top_logprobs_num"),
        (request(token_ids_logprob=[5]), "token_ids_logprob"),
        (request(mm_inputs=pb.MultimodalInputs()), "mm_inputs"),
        (request(kv_bootstrap_info=pb.KvBootstrapInfo()), "bootstrap_room"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(bad: pb.GenerateRequest, named: str) -> None:
    with pytest.raises(InvalidRequest, match=named) as refused:
        read_gateway_request(bad, MODEL)
    assert refused.value.kind == ("too_long" if "has 100" in named else "invalid")


def test_what_changes_the_logits_reaches_the_engine() -> None:
    wanted = pb.SamplingParams(
        min_p=0.5,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=2,
        min_new_tokens=3,
        logit_bias={"3": 1, "2": -100},
    )
    asked = request(sampling_params=wanted, top_logprobs_num=20)
    got = read_gateway_request(asked, MODEL).submit.sampling
    assert (got.min_p, got.presence_penalty, got.frequency_penalty) == (0.5, 1.0, -1.0)
    assert (got.repetition_penalty, got.min_tokens, got.top_logprobs) == (2.0, 3, 20)
    assert got.logit_bias == ((2, -100.0), (3, 1.0))
    plain = read_gateway_request(request(), MODEL).submit.sampling
    assert not plain.adjusts and plain.repetition_penalty == 1


@pytest.mark.parametrize(
    ("wanted", "kind", "source"),
    [
        (pb.SamplingParams(json_schema='{"type": "null"}'), "json_schema", '{"type": "null"}'),
        (pb.SamplingParams(regex="a+"), "regex", "a+"),
        (pb.SamplingParams(ebnf_grammar='root ::= "a"'), "lark", 'root ::= "a"'),
        (
            pb.SamplingParams(structural_tag='{"format": {"type": "regex", "pattern": "a"}}'),
            "lark",
            "start: /a/",
        ),
    ],
)
def test_what_the_answer_follows_reaches_the_engine(
    tmp_path: Path, wanted: pb.SamplingParams, kind: str, source: str
) -> None:
    codec = text_codec(tmp_path)
    think = codec.require_tokenizer().added_tokens
    for opened in (False, True):
        ids = [5, 6, *([think["<think>"]] if opened else [])]
        asked = request(sampling_params=wanted, tokenized=pb.TokenizedInput(input_ids=ids))
        grammar = read_gateway_request(asked, MODEL, codec=codec).submit.sampling.grammar
        assert grammar is not None and (grammar.kind, grammar.source) == (kind, source)
        assert grammar.closing == (think["</think>"] if opened else None)
        # Another node samples the answer and receives the same request.
        assert read_gateway_request(asked, MODEL).submit.sampling.grammar is None


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (pb.SamplingParams(json_schema='{"not": {}}'), "sampling_params.json_schema .*not"),
        (pb.SamplingParams(regex="(?=a)"), "sampling_params.regex"),
        (pb.SamplingParams(ebnf_grammar="start: b"), "sampling_params.ebnf_grammar"),
    ],
)
def test_what_no_answer_can_follow_is_named(
    tmp_path: Path, wanted: pb.SamplingParams, named: str
) -> None:
    codec = text_codec(tmp_path)
    asked = read_gateway_request(request(sampling_params=wanted), MODEL, codec=codec).asked
    with pytest.raises(InvalidRequest, match=named):
        asyncio.run(check_followable(asked, codec, "ann"))


def test_the_likeliest_tokens_are_told() -> None:
    async def parts() -> Parts:
        top = ((9, -0.5), (4, -1.5))
        yield [m.TokenOut(m.RequestId("r"), 9, -0.5, 1.0, 0, top)]
        yield m.Finished(m.RequestId("r"), m.FinishReason.LENGTH, usage(3, 1))

    asked = request(return_logprob=True, top_logprobs_num=2)
    (whole,) = answered(asked, parts())
    (top,) = whole.complete.output_logprobs.top_logprobs
    assert (list(top.token_ids), list(top.values)) == ([9, 4], [-0.5, -1.5])


async def said(tokens: list[int], reason: m.FinishReason) -> Parts:
    for index, token in enumerate(tokens):
        yield [m.TokenOut(m.RequestId("r"), token, -0.5, 1.0, index)]
    yield m.Finished(m.RequestId("r"), reason, usage(3, len(tokens)))


def answered(
    asked: pb.GenerateRequest,
    parts: Parts,
    tokenizer: Tokenizer | None = None,
    abort: Callable[[], None] = lambda: None,
) -> list[pb.GenerateResponse]:
    async def collect() -> list[pb.GenerateResponse]:
        answer = GatewayAnswer(
            read_gateway_request(asked, MODEL), (2,), IncrementalDetokenizer(tokenizer), abort
        )
        return [message async for message in answer.messages(parts)]

    return asyncio.run(collect())


def test_a_stop_token_is_counted_and_told_only_where_it_is_kept() -> None:
    *chunks, last = answered(
        request(stream=True, return_logprob=True), said([9, 8, 2], m.FinishReason.STOP)
    )
    assert [list(chunk.chunk.token_ids) for chunk in chunks] == [[9], [8]]
    assert [list(chunk.chunk.output_logprobs.token_logprobs) for chunk in chunks] == [[-0.5]] * 2
    complete = last.complete
    assert (list(complete.output_ids), complete.finish_reason) == ([9, 8], "stop")
    assert (complete.prompt_tokens, complete.completion_tokens, complete.cached_tokens) == (3, 3, 2)
    kept = request(sampling_params=pb.SamplingParams(no_stop_trim=True))
    (whole,) = answered(kept, said([9, 2], m.FinishReason.STOP))
    assert list(whole.complete.output_ids) == [9, 2]


def test_a_stop_string_ends_the_request_and_still_tells_what_was_cached(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer is not None
    tokens = tokenizer.encode("it was fine")
    aborts: list[int] = []
    asked = request(sampling_params=pb.SamplingParams(stop=["was"]))
    (last,) = answered(
        asked, said(tokens, m.FinishReason.ABORT), tokenizer, lambda: aborts.append(1)
    )
    assert last.complete.finish_reason == "stop" and last.complete.cached_tokens == 2
    assert "fine" not in tokenizer.decode(last.complete.output_ids) and aborts == [1]


class Router:
    """A reference for a gateway's knowledge: each block once, never without its parent."""

    def __init__(self) -> None:
        self.parents: dict[bytes, bytes | None] = {}

    def follow(self, changes: list[Change]) -> None:
        for change in changes:
            match change:
                case Cleared():
                    self.parents.clear()
                case Announced(parent, blocks, _):
                    assert parent is None or parent in self.parents
                    for block in blocks:
                        assert block.prefix not in self.parents
                        self.parents[block.prefix] = parent
                        parent = block.prefix
                case Withdrawn(prefixes):
                    for prefix in prefixes:
                        assert prefix not in self.parents.values()
                        del self.parents[prefix]


@pytest.mark.parametrize("seed", range(3))
def test_exactly_the_pages_that_lead_to_a_state_are_announced(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tree = PrefixCache(TreeConfig(slabs=24, blocks_per_slab=4, pages_per_slab=3))
    watch, everything = tree.watch("spelled"), tree.watch("all")
    late: int | None = None
    blocks, router, states = UsableBlocks(namespace_of(b"")), Router(), {}
    prompts: dict[bytes, list[bytes]] = {}
    for step in range(300):
        tokens, salt = branching_prompt(generator, step)
        allocation = tree.allocate(tokens, salt=salt, capacity_tokens=len(tokens), working_slots=1)
        if allocation is not None:
            end = int(generator.integers(allocation.cached_tokens + 1, len(tokens) + 1))
            tree.insert(allocation, end, allocation.working_slots[0], CheckpointKind.TURN_END)
            tree.release(allocation)
            names = prefix_hashes(tokens[:end], salt)
            prompts[names[-1]] = [] if salt else names[1 : end // 64 + 1]
        if step % 90 == 89:
            tree.flush()
        router.follow(blocks.apply(pack_events(tree.drain_events(watch))))
        batch = tree.drain_events(everything)
        if batch.is_snapshot:
            states = {}
        for event in batch:
            match event.kind:
                case "checkpoint_stored":
                    states[event.prefix] = event.tokens
                case "checkpoint_removed":
                    del states[event.prefix]
                case "cleared":
                    states = {}
        usable = {page for state in states for page in prompts[state]}
        assert set(router.parents) == usable
        if step == 200:
            late = tree.watch("spelled")
    assert late is not None
    joined = Router()
    joined.follow(UsableBlocks(namespace_of(b"")).apply(pack_events(tree.drain_events(late))))
    assert joined.parents == router.parents


def test_pages_of_pictures_and_pages_behind_them_are_not_announced() -> None:
    """A gateway's token ids are unsigned; a picture's keys are negative."""
    tokens = np.arange(64 * 4, dtype=np.int32)
    tokens[64 + 5 : 64 + 20] = -7
    tree = PrefixCache(TreeConfig(slabs=24, blocks_per_slab=4, pages_per_slab=3))
    watch = tree.watch("spelled")
    blocks, own = UsableBlocks(namespace_of(b"")), namespace_of(b"")
    sent = []
    for length in (64, 64 * 4):
        found = tree.allocate(tokens[:length], capacity_tokens=length, working_slots=1)
        assert found is not None
        tree.insert(found, length, found.working_slots[0], CheckpointKind.TURN_END)
        tree.release(found)
        changes = blocks.apply(pack_events(tree.drain_events(watch)))
        sent += [event for each in GatewayEvents(0, own).batches(changes) for event in each.events]
    stored = [block for event in sent for block in event.stored.blocks]
    assert [block.block_hash for block in stored] == [block_hash(prefix_hashes(tokens[:64])[1])]


def test_a_stream_goes_on_from_what_its_subscriber_saw_in_bounded_messages() -> None:
    tokens = np.arange(64 * 5000, dtype=np.int32)
    tree = PrefixCache(TreeConfig(slabs=2000, blocks_per_slab=4, pages_per_slab=3))
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1)
    assert allocation is not None
    tree.insert(allocation, len(tokens), allocation.working_slots[0], CheckpointKind.TURN_END)
    own = namespace_of(b"")
    changes = UsableBlocks(own).apply(pack_events(tree.drain_events(tree.watch("spelled"))))
    messages = list(GatewayEvents(41, own).batches(changes))
    assert [message.sequence_number for message in messages] == [42, 43]
    events = [event for message in messages for event in message.events]
    assert events[0].WhichOneof("data") == "cleared"
    stored = [event.stored for event in events[1:]]
    assert sum(len(each.blocks) for each in stored) == 5000
    assert not stored[0].HasField("parent_block_hash")
    assert stored[1].parent_block_hash == stored[0].blocks[-1].block_hash
    names = prefix_hashes(tokens)
    assert [block.block_hash for each in stored for block in each.blocks] == [
        block_hash(name) for name in names[1:]
    ]
    assert list(stored[1].blocks[-1].token_ids) == tokens[-64:].tolist()


def test_the_archive_is_the_same_each_time_and_names_its_digest(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"tokenizer\.json"):
        tokenizer_archive(tmp_path)
    write_tokenizer(tmp_path)
    archive = tokenizer_archive(tmp_path)
    assert archive == tokenizer_archive(tmp_path)
    chunks = list(archive_chunks(archive))
    assert b"".join(chunk.data for chunk in chunks) == archive
    assert chunks[-1].sha256 == hashlib.sha256(archive).hexdigest()
    with zipfile.ZipFile(io.BytesIO(archive)) as packed:
        assert set(packed.namelist()) == {"tokenizer.json", "tokenizer_config.json"}


def test_loads_count_what_eviction_cannot_take_apart() -> None:
    pages = {"free": 40, "working": 10, "tree": 50, "granted": 0, "quarantined": 0}
    stats = m.StatsReply(
        1,
        pages | {"total": 100, "pinned": 20},
        {},
        {},
        # A request that gave way was looked up twice there.
        {"prompt_tokens": 400, "usable_tokens": 340},
        {},
        {m.RequestPhase.WAITING: 3, m.RequestPhase.DECODING: 2},
        looked_up_tokens=200,
        usable_tokens=150,
    )
    reply = loads_message(stats, max_running=8)
    (load,) = reply.loads
    assert (load.num_running_reqs, load.num_waiting_reqs, load.max_running_requests) == (2, 3, 8)
    assert (load.token_usage, load.active_token_usage, load.cache_hit_rate) == (0.6, 0.3, 0.75)
    assert load.max_total_num_tokens == 6400
