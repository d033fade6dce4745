"""What the end of an answer tells of the next turn.

Knows what the checkpoint's tokenizer calls a tool call; does not know conversations or templates.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from .messages import FinishReason

_TOOL_CALL = "<tool_call>"


def read_tool_call_ids(checkpoint: Path) -> frozenset[int]:
    """Ids of the tokens that open a tool call in an answer; none where the folder has no tokenizer
    or its vocabulary has no such token."""
    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        return frozenset()
    added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens", [])
    return frozenset(token["id"] for token in added if token["content"] == _TOOL_CALL)


def turn_hint(output: Sequence[int], reason: FinishReason, tool_call_ids: frozenset[int]) -> str:
    """As HybridTree.publish takes it: an answer that calls a tool is soon continued."""
    if reason is not FinishReason.STOP:
        return "unknown"
    return "end_of_turn" if tool_call_ids.isdisjoint(output) else "tool_call"
