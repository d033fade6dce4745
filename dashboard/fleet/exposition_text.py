"""Reads what a node answers at /metrics, as far as the fleet's page shows it.

Pure. Another host wrote the text: what is kept of it is bounded, and a line that is no sample is
passed over.
"""

import math
import re
from collections.abc import Mapping
from itertools import islice

Labels = tuple[tuple[str, str], ...]
"""Names and values, in the order of their names."""

Samples = dict[str, dict[Labels, float]]
"""By a sample's name and its labels."""

NO_LABELS: Labels = ()

MOST_SERIES = 2048
"""Of one name. A node has a few hundred where it has most: a link to each of its peers."""

LONGEST_LABEL = 128

_MOST_LINES = 50_000
_LONGEST_LINE = 4096
_MOST_TEXTS = 1 << 15
_LONGEST_TEXT = 256
_PREFIX = "tasuki_"
_SAMPLE = re.compile(r"(\w{1,100})(?:\{([^\n]*)\})? ([^\s]{1,40})")
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.)*)",?')
_ESCAPED = re.compile(r"\\(.)")


class LabelTexts:
    """Labels by how they are written, which is alike on all nodes: each is read, and kept, once."""

    def __init__(self) -> None:
        self._read: dict[str, Labels] = {}

    def read(self, text: str) -> Labels:
        known = self._read.get(text)
        if known is None:
            pairs = ((name, _plain(value)) for name, value in _LABEL.findall(text))
            known = tuple(sorted(pairs))
            if len(self._read) < _MOST_TEXTS and len(text) <= _LONGEST_TEXT:
                self._read[text] = known
        return known


def read_samples(text: str, wanted: frozenset[str], texts: LabelTexts | None = None) -> Samples:
    """The samples of the wanted names. texts: of all nodes that are read. Raises ValueError where
    the text has no metric of tasuki."""
    texts = texts or LabelTexts()
    found: Samples = {}
    ours = False
    for line in islice(text.split("\n"), _MOST_LINES):
        if not line.startswith(_PREFIX):
            continue
        ours = True
        match = _SAMPLE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        if match is None or match[1] not in wanted:
            continue
        value = _number(match[3])
        series = found.setdefault(match[1], {})
        if value is not None and len(series) < MOST_SERIES:
            series[texts.read(match[2] or "")] = value
    if not ours:
        raise ValueError("its answer holds no metric of tasuki")
    return found


def one(samples: Samples, name: str) -> float | None:
    """The sample without labels."""
    return samples.get(name, {}).get(NO_LABELS)


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Sums by the value of one label."""
    sums: dict[str, float] = {}
    for labels, value in samples.get(name, {}).items():
        key = dict(labels).get(label)
        if key is not None:
            sums[key] = sums.get(key, 0.0) + value
    return sums


def labels_of(samples: Samples, name: str) -> Mapping[str, str]:
    """Of the first sample of that name; empty where there is none."""
    return dict(next(iter(samples.get(name, {})), NO_LABELS))


def difference(later: Samples, earlier: Samples) -> Samples:
    """What was added to each sample in between; one that is new began at zero."""
    return {
        name: {
            labels: value - earlier.get(name, {}).get(labels, 0.0)
            for labels, value in series.items()
        }
        for name, series in later.items()
    }


def _plain(value: str) -> str:
    whole = _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
    return whole[:LONGEST_LABEL]


def _number(text: str) -> float | None:
    """None where it is no finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
