"""The pictures of one request, in lines of `tasuki explain`. Pure.

A bar shows the prompt's tokens: text, pictures by outcome. Then each picture has a line: outcome,
tokens, bytes, and the milliseconds of its stages.
"""

from collections import Counter
from collections.abc import Iterator

from tasuki.engine import messages as m
from tasuki.engine.messages import PictureOutcome

_WIDTH = 60
_ROWS = 20
"""Largest number of pictures with a line of their own."""
_MARKS = {
    PictureOutcome.SKIPPED: "s",
    PictureOutcome.KEPT: "k",
    PictureOutcome.ENCODED: "E",
    PictureOutcome.ELSEWHERE: "o",
    PictureOutcome.UNREACHED: "?",
}
_MEANING = {
    PictureOutcome.SKIPPED: "the hit covers it",
    PictureOutcome.KEPT: "rows kept",
    PictureOutcome.ENCODED: "encoded",
    PictureOutcome.ELSEWHERE: "by the node that computed the prompt",
    PictureOutcome.UNREACHED: "the request ended before",
}


def pictures_story(report: m.PicturesReport, prompt_tokens: int) -> list[str]:
    """Return the lines about a prompt's pictures. prompt_tokens: of the whole prompt."""
    outcomes = Counter(picture.outcome for picture in report.each)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
    kinds = {"image": report.image_tokens, "video": report.video_tokens}
    tokens = " and ".join(f"{count} {kind}" for kind, count in kinds.items() if count)
    dropped = report.count - len(report.each)
    earlier = f", {dropped} earlier ones not listed" if dropped else ""
    return [
        f"  pictures {report.count} of {tokens} tokens, {report.usable_tokens} of them usable: "
        f"{counts}{earlier}",
        f"    {_bar(report, prompt_tokens)}  . text, {_legend(outcomes)}",
        *map(_line, report.each[-_ROWS:]),
    ]


def _bar(report: m.PicturesReport, prompt_tokens: int) -> str:
    """Return the prompt from its first token to its last, pictures as letters."""
    bar = ["."] * _WIDTH
    for picture in report.each:
        first = _WIDTH * picture.start // max(1, prompt_tokens)
        last = _WIDTH * (picture.start + picture.tokens - 1) // max(1, prompt_tokens)
        for column in range(first, min(last, _WIDTH - 1) + 1):
            bar[column] = _MARKS.get(picture.outcome, "?")
    return "".join(bar)


def _legend(outcomes: Counter[PictureOutcome]) -> str:
    return ", ".join(f"{_MARKS.get(outcome, '?')} {outcome}" for outcome in outcomes)


def _line(picture: m.PictureUse) -> str:
    name = picture.place or f"{picture.kind} at token {picture.start}"
    times = ", ".join(_stages(picture))
    size = f"{picture.tokens} tokens, {picture.bytes / 1024:.1f} KiB"
    meaning = _MEANING.get(picture.outcome, picture.outcome)
    return f"    {name:<28} {size}: {meaning}" + (f", {times}" if times else "")


def _stages(picture: m.PictureUse) -> Iterator[str]:
    stages = {
        "decode": picture.decode_seconds,
        "resize": picture.resize_seconds,
        "tower": picture.tower_seconds,
        "waited": picture.wait_seconds,
    }
    for name, seconds in stages.items():
        if seconds:
            yield f"{name} {1000 * seconds:.1f} ms"
