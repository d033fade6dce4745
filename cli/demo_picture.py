"""The demo's picture: its questions, and their rows as text.

demo_picture.png was drawn by tools/embedded/tower/scenes.py. No picture of the training had
this figure in this quarter. The first question sends the file. Each later one sends the whole
conversation again, with the file. So a row shows the part of the prompt covered by the hit. A
picture inside that part is neither decoded nor encoded again.
"""

import importlib.util
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine.messages import PictureOutcome
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.weights import has_tower
from tasuki.utils.program import PACKAGE

KNOWS_SHAPES = (
    "It knows one circle, square, star or heart in red, green, blue or yellow, on a light ground. "
    "It knows nothing else about pictures, and answers each question with what it sees."
)
NO_PILLOW = "A picture needs Pillow: pip install 'tasuki[vision]'. The demo goes on without one."
QUESTIONS = ("What is in the picture?", "What do you see?")
"""The questions, in the words of the model's training."""
_OUTCOMES = {
    PictureOutcome.ENCODED: "encoded here",
    PictureOutcome.ELSEWHERE: "encoded on the prefill node",
    PictureOutcome.SKIPPED: "not encoded",
}
_FILE = "demo_picture.png"
_MOST_TOKENS = 40


def picture_of(model: str) -> bytes | None:
    """Return the picture's file for a checkpoint folder; None if the model has no tower. Raises
    ModelConfigError, WeightsError."""
    if VisionConfig.load(model) is None or not has_tower(model):
        return None
    return (files(f"{PACKAGE}.cli") / _FILE).read_bytes()


def can_decode() -> bool:
    """Return true if Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def show_picture(client: Client, file: bytes, write: Callable[[str], None]) -> list[Answer]:
    """Ask the questions about a picture, one after the other, with greedy answers. Write a row for
    each, and return the answers."""
    messages: list[dict[str, Any]] = []
    answers: list[Answer] = []
    write(f"\nA picture, {Path('cli', _FILE)}. {KNOWS_SHAPES}")
    for question in QUESTIONS:
        parts = [question] if messages else [file, question]
        messages.append({"role": "user", "parts": parts})
        answer = client.generate(
            Prompt(messages=messages), temperature=0.0, max_new_tokens=_MOST_TOKENS
        ).result()
        answers.append(answer)
        messages.append({"role": "assistant", "content": answer.text})
        write(picture_row(question, answer))
    return answers


def picture_row(question: str, answer: Answer) -> str:
    """Return a question's row: the answer, the time to its first token, the prompt's tokens, those
    covered by the hit, what happened to the picture, and the size handed over."""
    usage = answer.usage
    usable = 0 if usage.hit is None else usage.hit.usable_tokens
    seen = () if usage.pictures is None else usage.pictures.each
    outcomes = "".join(f", {_OUTCOMES.get(one.outcome, one.outcome)}" for one in seen)
    sent = "" if usage.transfer is None else f", {usage.transfer.bytes / 2**20:.1f} MiB handed over"
    text = " ".join(answer.text.split())
    return (
        f"  {question:<28} {text:<20} {usage.time_to_first_token * 1000:4.0f} ms, "
        f"{usable} of {usage.prompt_tokens} tokens from the cache{outcomes}{sent}"
    )
