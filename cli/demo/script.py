"""The demonstration's conversation: ten turns of an assistant that reads letters through a tool.

The first turn sets the scene, each later one brings what a tool returned or what the person asks
next; every turn adds several hundred tokens, so that the context grows as an agent's does. The
texts are letters.txt: paragraphs under the names of their parts, two to a letter.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files

Turn = Sequence[Mapping[str, str]]


def turns() -> list[Turn]:
    """Messages of the ten turns, each with role and content; answers come between them."""
    parts = _parts()
    (scene,), (opening,), (notes,) = parts["scene"], parts["opening"], parts["notes"]
    pairs = iter(parts["letters"])
    letters = list(zip(pairs, pairs, strict=True))
    script: list[Turn] = []
    for number, request in enumerate([opening, *parts["requests"]]):
        found = _found(letters, number % len(letters), notes)
        script.append([{"role": "user", "content": f"{request}\n\n{found}"}])
    script[0] = [{"role": "system", "content": scene}, *script[0]]
    return script


def _parts() -> dict[str, list[str]]:
    """Paragraphs, a line each, by the name of their part."""
    parts: dict[str, list[str]] = {}
    for block in (files(__package__) / "letters.txt").read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("# "):
            paragraphs = parts[block.removeprefix("# ")] = []
        else:
            paragraphs.append(" ".join(block.split()))
    return parts


def _found(letters: Sequence[tuple[str, str]], number: int, notes: str) -> str:
    """What the tool returns: a letter, another beside it, and the library's notes."""
    first, second = letters[number]
    beside = " ".join(letters[(number + 4) % len(letters)])
    return (
        f"The tool returned letter {number + 1}.\n{first}\n{second}\n\n"
        f"It was found together with another.\n{beside}\n\n{notes}"
    )
