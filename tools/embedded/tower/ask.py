"""Asks a served model about held-out scenes: `python -m tools.embedded.tower.ask`.

Starts a node of the embedded model, or of another folder, and sends PNG files through its client
API. A scene has some questions, each behind the earlier answers. Prints the share of right answers,
also by kind. Ends with status 1 below --least.
"""

import argparse
import io
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tasuki.cli.launcher import fused
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.model.named_checkpoints import embedded_model

from .scenes import Exchange, Scene, exchanges, held_out_scene


def main() -> int:
    settings = _settings()
    chooser = random.Random(settings.seed)
    asked, right = Counter[str](), Counter[str]()
    flags = ["--model", str(settings.model), "--dtype", "float32", "--arena-mib", "256"]
    with fused(flags) as address, Client(address) as client:
        for number in range(settings.scenes):
            scene = held_out_scene(chooser)
            questions = exchanges(scene, chooser)[: settings.questions]
            answers = ask(client, scene, questions)
            for exchange, answer in zip(questions, answers, strict=True):
                asked[exchange.answer] += 1
                right[exchange.answer] += answer == exchange.answer
                if answer != exchange.answer:
                    print(f"scene {number}: {answer!r}, not {exchange.answer!r}")
    share = right.total() / asked.total()
    for answer in sorted(asked):
        print(f"{answer:<16} {right[answer]:4} of {asked[answer]:4} right")
    print(
        f"{settings.scenes} held-out scenes: {right.total()} of {asked.total()} right, {share:.1%}"
    )
    return 0 if share >= settings.least else 1


def ask(client: Client, scene: Scene, questions: list[Exchange]) -> list[str]:
    """Return the greedy answers to questions about a scene, one after the other."""
    file = io.BytesIO()
    scene.draw().save(file, "PNG")
    messages: list[dict[str, Any]] = []
    answers = []
    for number, exchange in enumerate(questions):
        parts = [file.getvalue()] if number == 0 else []
        messages.append({"role": "user", "parts": [*parts, exchange.question]})
        found = client.generate(
            Prompt(messages=messages), temperature=0.0, max_new_tokens=_MOST
        ).result()
        answers.append(found.text)
        messages.append({"role": "assistant", "content": found.text})
    return answers


def _settings() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=embedded_model(), help="folder")
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--questions", type=int, default=2, help="about a scene at most")
    parser.add_argument("--seed", type=int, default=4242)
    parser.add_argument("--least", type=float, default=0.9, help="share of right answers")
    return parser.parse_args()


_MOST = 24

if __name__ == "__main__":
    sys.exit(main())
