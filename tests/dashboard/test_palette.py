"""Tests of the palette: colours drawn side by side differ for every kind of colour vision, in light
and dark.

Distances are CIE76 between colours as seen without one kind of cone. Source: Machado, Oliveira and
Fernandes, 2009, severity 1. An eye separates two colours at a glance from a distance of about 10.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

STYLE = (Path(__file__).parents[2] / "dashboard" / "page" / "page.css").read_text()
DARK = "@media (prefers-color-scheme: dark)"
LEAST = 12.0
TOGETHER = {
    "waterfall": (
        *("usable", "new", "not_pulled", "never_checkpointed", "checkpoint_evicted", "kv_evicted"),
        *("alignment", "in_flight", "load_declined", "load_failed", "template_changed"),
        *("unscheduled", "paper"),
    ),
    "pools": ("working", "pinned", "evictable", "in_transfer", "quarantined", "free"),
    "memory": ("in_use", "cached", "free"),
    "tree": ("usable", "never_checkpointed", "in_flight", "in_transfer", "soft", "line"),
    "sessions": ("usable", "new", "checkpoint_evicted", "in_flight", "soft"),
    "gantt": ("ink", "usable", "checkpoint_evicted", "in_flight", "kv_evicted", "paper"),
}
SEEN_AS = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no long": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no medium": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no short": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
Colour = NDArray[np.float64]


def palette(scheme: str) -> dict[str, str]:
    """Return colours as #rrggbb by name."""
    light, dark = STYLE.split(DARK)
    named = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))
    if scheme == "dark":
        named |= re.findall(r"--(\w+): (#[0-9a-f]{6})", dark.split("}")[0])
    return named


def linear(written: str) -> Colour:
    part = np.array([int(written[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def lab(rgb: Colour) -> Colour:
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.array(to_xyz) @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def alike(scheme: str, view: str, eye: str) -> Iterator[str]:
    """Yield pairs of a view's colours too close for this kind of eye."""
    named = palette(scheme)
    seen = {name: lab(np.array(SEEN_AS[eye]) @ linear(named[name])) for name in TOGETHER[view]}
    for one, other in itertools.combinations(seen, 2):
        distance = np.linalg.norm(seen[one] - seen[other])
        if distance < LEAST:
            yield f"{scheme}, {view}, {eye}: {one} and {other}: {distance:.1f}"


def test_colours_of_a_view_are_told_apart() -> None:
    views = itertools.product(("light", "dark"), TOGETHER, SEEN_AS)
    faults = [fault for view in views for fault in alike(*view)]
    assert not faults, "\n".join(faults)
