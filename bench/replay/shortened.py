"""A trace with its lengths divided, so that a small model plays it on a CPU.

Pure functions. Blocks keep their ids and become shorter, so that prompts share what they shared.
"""

from dataclasses import replace

from tasuki.bench.replay.trace import Trace, TraceRequest


def shortened(trace: Trace, factor: int, turns: int, answer_tokens: int, slower: float) -> Trace:
    """The first turns. factor: by which lengths are divided. answer_tokens: of an answer, at most.
    slower: factor of the times. How answers ended is left out, for nodes are not given it.
    REQUIRES: factor divides the block."""
    assert trace.block_tokens % factor == 0, (trace.block_tokens, factor)
    block = trace.block_tokens // factor

    def short(request: TraceRequest) -> TraceRequest:
        prompt = max(1, request.prompt_tokens // factor)
        return replace(
            request,
            timestamp_ms=round(request.timestamp_ms * slower),
            prompt_tokens=prompt,
            answer_tokens=min(max(1, request.answer_tokens // factor), answer_tokens),
            block_ids=request.block_ids[: -(-prompt // block)],
            stop="",
        )

    return Trace(trace.name, block, tuple(short(each) for each in trace.requests[:turns]))
