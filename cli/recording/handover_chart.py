"""Timelines of a hand-over and of a pull as lines of text: two tracks, each on its own clock. Pure
functions."""

from collections.abc import Sequence

from tasuki.transfer.timeline import (
    HandoverTimeline,
    PhaseMark,
    ReceiverTrack,
    SenderTrack,
    SentWindow,
)

_Drawn = tuple[SentWindow, Sequence[float]]
_WIDTH = 60
_ROWS = 12
"""A track of more windows shows every so many-th; the first and the last always."""


def chart(timeline: HandoverTimeline) -> list[str]:
    ticks = [window.layers_finished for window in timeline.sender.windows]
    return [
        *_sender("sender", timeline.sender, ticks, "| layer done, = sending"),
        *_receiver("receiver", timeline.receiver),
    ]


def pull_chart(timeline: HandoverTimeline) -> list[str]:
    """Its layers were finished before: there is no tick to draw."""
    none = [()] * len(timeline.sender.windows)
    return [
        *_sender("giver", timeline.sender, none, "= sending"),
        *_receiver("puller", timeline.receiver),
    ]


def _sender(
    name: str, track: SenderTrack, ticks: Sequence[Sequence[float]], meaning: str
) -> list[str]:
    """ticks: what to mark in each window's bar."""
    if not track.windows:
        return []
    end = max([window.flushed_at for window in track.windows] + [m.at for m in track.phases])
    lines = [f"  {name:<8} {_phases(track.phases)}"]
    for window, marks in _thinned(list(zip(track.windows, ticks, strict=True))):
        begun = _column(window.begun_at, end)
        bar = [" "] * begun + ["="] * (_column(window.flushed_at, end) - begun + 1)
        bar += [" "] * (_WIDTH - len(bar))
        for at in marks:
            bar[_column(at, end)] = "|"
        state = " and state" if window.carries_state else ""
        lines.append(
            f"    {window.sequence:>4} {''.join(bar)} layers {window.first_layer}-"
            f"{window.end_layer - 1}, {window.pages} pages{state}"
        )
    return [*lines, f"         0{f'{end * 1000:.1f} ms':>{_WIDTH - 1}} {meaning}"]


def _receiver(name: str, track: ReceiverTrack) -> list[str]:
    lines = [f"  {name:<8} {_phases(track.phases)}"]
    lines += [
        f"    waited {1000 * (wait.ended_at - wait.began_at):.2f} ms for layer {wait.layer}"
        for wait in track.waits[:_ROWS]
    ]
    return lines


def _phases(marks: Sequence[PhaseMark]) -> str:
    return ", ".join(f"{mark.phase.name.lower()} {mark.at * 1000:.1f} ms" for mark in marks)


def _column(at: float, end: float) -> int:
    return min(_WIDTH - 1, max(0, int(_WIDTH * at / end))) if end else 0


def _thinned(items: Sequence[_Drawn]) -> Sequence[_Drawn]:
    if len(items) <= _ROWS:
        return items
    return [items[round(row * (len(items) - 1) / (_ROWS - 1))] for row in range(_ROWS)]
