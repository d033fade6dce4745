"""The demonstration's conversation: ten turns of an assistant that reads letters through a tool.

The first turn sets the scene, each later one brings what a tool returned or what the person asks
next; every turn adds several hundred tokens, so that the context grows as an agent's does. The last
turn is then asked anew with other endings, as by somebody who edits what he sent. The texts are
demo_letters.txt: paragraphs under the names of their parts, two to a letter.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files

from tasuki.utils.commands import PACKAGE

Turn = Sequence[Mapping[str, str]]


def turns() -> list[Turn]:
    """Messages of the ten turns, each with role and content; answers come between them."""
    parts = _parts()
    (scene,), (notes,) = parts["scene"], parts["notes"]
    script = [_turn(parts, number, notes) for number in range(1 + len(parts["requests"]))]
    script[0] = [{"role": "system", "content": scene}, *script[0]]
    return script


def edited_turns() -> list[Turn]:
    """The last of turns() anew, each time with another end: what they begin with is the same."""
    parts = _parts()
    return [_turn(parts, len(parts["requests"]), ending) for ending in parts["endings"]]


def _turn(parts: Mapping[str, list[str]], number: int, end: str) -> Turn:
    """The person's, with what the tool returned; end: its last paragraph."""
    (opening,) = parts["opening"]
    pairs = iter(parts["letters"])
    letters = list(zip(pairs, pairs, strict=True))
    request = [opening, *parts["requests"]][number]
    found = _found(letters, number % len(letters), end)
    return [{"role": "user", "content": f"{request}\n\n{found}"}]


def _parts() -> dict[str, list[str]]:
    """Paragraphs, a line each, by the name of their part."""
    parts: dict[str, list[str]] = {}
    for block in (
        (files(f"{PACKAGE}.cli") / "demo_letters.txt").read_text(encoding="utf-8").split("\n\n")
    ):
        if block.startswith("# "):
            paragraphs = parts[block.removeprefix("# ")] = []
        else:
            paragraphs.append(" ".join(block.split()))
    return parts


def _found(letters: Sequence[tuple[str, str]], number: int, end: str) -> str:
    """What the tool returns: a letter, another beside it, and the end."""
    first, second = letters[number]
    beside = " ".join(letters[(number + 4) % len(letters)])
    return (
        f"The tool returned letter {number + 1}.\n{first}\n{second}\n\n"
        f"It was found together with another.\n{beside}\n\n{end}"
    )
