"""What the end of an answer tells the cache: a tool call, the end of a turn, or nothing."""

import json
from pathlib import Path

import pytest
from tasuki.engine.messages import FinishReason
from tasuki.engine.turn_hint import read_tool_call_ids, turn_hint


def test_the_id_of_a_tool_call_is_read_from_the_tokenizer(tmp_path: Path) -> None:
    assert read_tool_call_ids(tmp_path) == frozenset()
    added = [{"id": 7, "content": "<think>"}, {"id": 9, "content": "<tool_call>"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    assert read_tool_call_ids(tmp_path) == {9}


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
