"""The hint to the cache at the end of an answer: a tool call, the end of a turn, or none."""

import json
from pathlib import Path

import pytest

from tasuki.engine.config import EngineConfig
from tasuki.engine.messages import FinishReason
from tasuki.engine.scheduling.checkpoints import read_tool_call_ids, turn_hint
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import Lone, tiny_parts


def test_the_id_of_a_tool_call_is_read_from_the_tokenizer(tmp_path: Path) -> None:
    assert read_tool_call_ids(tmp_path, "<tool_call>") == frozenset()
    added = [{"id": 7, "content": "<think>"}, {"id": 9, "content": "<tool_call>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert read_tool_call_ids(tmp_path, "<tool_call>") == {9}


@pytest.mark.parametrize(
    ("output", "reason", "told"),
    [
        ([1, 9, 3, 2], FinishReason.STOP, "tool_call"),
        ([1, 3, 2], FinishReason.STOP, "end_of_turn"),
        ([1, 9, 3], FinishReason.LENGTH, "unknown"),
        ([1, 3], FinishReason.ABORT, "unknown"),
    ],
)
def test_only_an_answer_that_ended_by_itself_tells(
    output: list[int], reason: FinishReason, told: str
) -> None:
    assert turn_hint(output, reason, frozenset({9})) == told


def test_the_engine_tells_the_cache_of_a_tool_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is the same, once with a vocabulary in which its first token opens a tool call."""
    told: list[str] = []
    insert = HybridPrefixCache.insert

    def listen(
        cache: HybridPrefixCache,
        allocation: Allocation,
        boundary: int,
        slot: int | None,
        kind: CheckpointKind,
        hint: str = "unknown",
    ) -> None:
        if kind is CheckpointKind.TURN_END:
            told.append(hint)
        insert(cache, allocation, boundary, slot, kind, hint)

    monkeypatch.setattr(HybridPrefixCache, "insert", listen)
    parts = tiny_parts()
    prompt = [*range(1, 21)]
    plain = Lone(EngineConfig(model=str(tmp_path), dtype="float32"), parts=parts)
    first, _, last = plain.ask("plain", prompt, 3)
    added = [{"id": first, "content": "<tool_call>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    calling = Lone(EngineConfig(model=str(tmp_path), dtype="float32"), parts=tiny_parts())
    sampling = SamplingParams(max_new_tokens=8, stop_token_ids=(last,))
    calling.ask("calling", prompt, 8, sampling=sampling)
    assert calling.finished("calling").reason is FinishReason.STOP
    assert told == ["unknown", "tool_call"]
