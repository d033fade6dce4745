"""The prompts of `tasuki generate`: sent all at once, and their answers printed."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt, SamplingOptions
from tasuki.client.session import Client
from tasuki.proto import inference_pb2 as pb

from .launcher import READY_SECONDS

_MAX_CONCURRENT = 256
_LOOK_SECONDS = 0.02


def wait_until_met(client: Client) -> None:
    """Wait for the node's connection to each prefill node, at most READY_SECONDS; a late one is no
    error. A decode daemon takes calls earlier, and would then prefill the prompts itself."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and any(
        node.state != pb.PREFILL_NODE_STATE_CONNECTED for node in client.stats().prefill_nodes
    ):
        time.sleep(_LOOK_SECONDS)


def answer_all(
    client: Client,
    prompts: Sequence[Prompt],
    predictions: Sequence[Sequence[int]],
    sampling: SamplingOptions,
) -> list[Answer]:
    """Send the prompts, _MAX_CONCURRENT at a time, and return their answers in the prompts' order.
    Raises the first ClientError."""

    def answer(prompt: Prompt, prediction: Sequence[int]) -> Answer:
        return client.generate(prompt, prediction=prediction, **sampling).result()

    with ThreadPoolExecutor(min(len(prompts), _MAX_CONCURRENT)) as pool:
        return [*pool.map(answer, prompts, predictions)]


def as_json(answer: Answer) -> dict[str, Any]:
    return {
        "token_ids": list(answer.token_ids),
        "text": answer.text,
        "usage": asdict(answer.usage),
    }


def count_predictions(answers: Sequence[dict[str, Any]]) -> None:
    """Set missing counts of predicted tokens to 0, in place. A node treats an empty prediction as
    none, so it reports no accepted and no rejected tokens."""
    for answer in answers:
        for field in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
            answer["usage"][field] = answer["usage"][field] or 0


def as_text(index: int, answer: Answer, *, with_ids: bool) -> str:
    """Return an answer as text, with its prompt's index. An answer without text (a model without a
    tokenizer) always shows its token ids."""
    usage = answer.usage
    lines = [answer.text] if answer.text else []
    lines.append(f"prompt {index}: {answer.reason.value}")
    if with_ids or not answer.text:
        lines.append("  tokens " + " ".join(map(str, answer.token_ids)))
    lines.append(
        f"  usage  {usage.prompt_tokens} prompt + {usage.completion_tokens} new tokens, first "
        "after "
        f"{usage.time_to_first_token * 1000:.0f} ms, all after {usage.seconds * 1000:.0f} ms, "
        f"prefilled on {usage.prefilled_on or 'an unnamed node'}"
    )
    if usage.drafted_tokens:
        lines.append(f"  drafts {usage.accepted_tokens} of {usage.drafted_tokens} accepted")
    if usage.hit is not None:
        causes = ", ".join(f"{cause} {count}" for cause, count in usage.hit.causes.items() if count)
        lines.append(
            f"  cache  {usage.hit.kv_tokens} tokens of KV, {usage.hit.usable_tokens} usable"
            + (f"; computed: {causes}" if causes else "")
        )
    return "\n".join(lines)
