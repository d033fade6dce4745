"""A node's /metrics as the fleet's page and the planner read it: names, parser, buckets, gains.

Names: the metrics used by the page. docs/metrics.md explains each.

read_samples(): parses an answer of /metrics. Pure. Another host wrote the text. So the amount kept
is bounded, and a malformed line is skipped.

Buckets: shares and percentiles of a histogram. Pure. A node exports the count of observations up to
each bound. Observations between two bounds count as evenly spread, as in Prometheus.

RecentSamples owns a node's last few samples and gives its counters' recent gains. One thread.
Invariant: all samples are from one run of the node. A restart drops the earlier ones.
"""

import math
import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

NODE = "tasuki_node_info"
STARTED = "tasuki_node_start_time_seconds"
FIRST_TOKEN = "tasuki_time_to_first_token_seconds"
PER_TOKEN = "tasuki_time_per_output_token_seconds"
QUEUE = "tasuki_queue_seconds"
ROOM_QUEUE = "tasuki_room_queue_seconds"
GENERATED = "tasuki_generated_tokens_total"
REQUESTS = "tasuki_requests"
PAGES = "tasuki_cache_pages"
SLOTS = "tasuki_cache_slots"
SLABS = "tasuki_cache_slabs"
SLAB_BYTES = "tasuki_cache_slab_bytes"
EACH_BYTES = "tasuki_cache_each_bytes"
INTEGRITY = "tasuki_cache_integrity"
REFUSED = "tasuki_requests_rejected_total"
LOST_HANDOVERS = "tasuki_handovers_lost_total"

ANSWERED = (
    "tasuki_request_prompt_tokens_total",
    "tasuki_request_usable_tokens_total",
    "tasuki_request_lost_tokens_total",
)
"""Names of the counters of prompt tokens, of usable cached tokens, and of lost tokens by cause, for
requests sent by clients to this node."""

LOOKED_UP = (
    "tasuki_cache_prompt_tokens_total",
    "tasuki_cache_usable_tokens_total",
    "tasuki_cache_lost_tokens_total",
)
"""Names of the counters with the meanings of ANSWERED, counted by the cache's tree. They are for a
node without requests from clients."""

TIER_SLABS = "tasuki_tier_slabs"
TIER_BYTES = "tasuki_tier_bytes_total"
"""Counter of bytes moved by a tier. Only nodes with memory below their arena export it and
TIER_SLABS."""

LINK_STATE = "tasuki_handover_link_state"
LINK_HANDOVERS = "tasuki_handover_link_handovers_total"
LINK_BYTES = "tasuki_handover_link_bytes_total"
LINK_EXPOSED = "tasuki_handover_link_exposed_seconds_total"

CHOICES = "tasuki_prefill_choices_total"
CHOICE_EXPECTED = "tasuki_prefill_choice_expected_tokens_total"
CHOICE_FOUND = "tasuki_prefill_choice_found_tokens_total"
CHOICE_REGRET = "tasuki_prefill_choice_regret_seconds_total"
CHOOSING = frozenset({CHOICES, CHOICE_EXPECTED, CHOICE_FOUND, CHOICE_REGRET})
"""Names of the metrics about choices of prefill nodes. Only nodes making such choices export
them."""

CALLER_ENDED = "tasuki_caller_requests_finished_total"
CALLER_FIRST_TOKEN = "tasuki_caller_time_to_first_token_seconds"
CALLER_PER_TOKEN = "tasuki_caller_time_per_output_token_seconds"
CALLER_TARGETS = "tasuki_caller_target_requests_total"

_HISTOGRAMS = (FIRST_TOKEN, PER_TOKEN, QUEUE, ROOM_QUEUE, CALLER_FIRST_TOKEN, CALLER_PER_TOKEN)
WANTED = frozenset(
    {
        *(NODE, STARTED, GENERATED, REQUESTS, PAGES, SLOTS, INTEGRITY, REFUSED, LOST_HANDOVERS),
        *(*ANSWERED, *LOOKED_UP),
        *(SLABS, SLAB_BYTES, EACH_BYTES, TIER_SLABS, TIER_BYTES),
        *(LINK_STATE, LINK_HANDOVERS, LINK_BYTES, LINK_EXPOSED, CALLER_ENDED),
        CALLER_TARGETS,
        *(f"{name}_bucket" for name in _HISTOGRAMS),
        *CHOOSING,
    }
)
"""Names of the metrics to read. All other metrics are skipped."""


Labels = tuple[tuple[str, str], ...]
"""The labels of a sample: pairs of a label's name and its value, in the order of the names."""

Samples = dict[str, dict[Labels, float]]
"""The parsed samples of /metrics: values by the metric's name, then by the sample's labels."""

NO_LABELS: Labels = ()

MOST_SERIES = 2048
"""Largest number of label sets kept for one metric name. A node has at most a few hundred: one link
to each of its peers."""

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
    """A cache of parsed labels by their text. The texts are alike on all nodes, so each is parsed
    and kept once."""

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
    """Parse an answer of /metrics and return the samples of the wanted names. Malformed lines, and
    lines over the bounds, are skipped. texts: cache of parsed labels, shared by all nodes. Raises
    ValueError if the text has no metric of tasuki."""
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
    """Return the value of the metric's sample without labels; None if it does not exist."""
    return samples.get(name, {}).get(NO_LABELS)


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Return the sums of a metric's samples with this label, by the label's value."""
    sums: dict[str, float] = {}
    for labels, value in samples.get(name, {}).items():
        key = dict(labels).get(label)
        if key is not None:
            sums[key] = sums.get(key, 0.0) + value
    return sums


def labels_of(samples: Samples, name: str) -> Mapping[str, str]:
    """Return the labels of the metric's first sample, by label name; empty without a sample."""
    return dict(next(iter(samples.get(name, {})), NO_LABELS))


def difference(later: Samples, earlier: Samples) -> Samples:
    """Return the gain of each of the later samples over `earlier`. A new sample began at zero."""
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
    """Return the text's number; None if it is not a finite number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


Buckets = dict[float, float]
"""A histogram: the number of observations up to each upper bound. The last bound is infinite."""


def buckets_of(samples: Samples, name: str) -> Buckets:
    """Return the buckets of the histogram with this name, summed over all labels."""
    sums: Buckets = {}
    for buckets in buckets_by(samples, name, "").values():
        add_buckets(sums, buckets)
    return sums


def buckets_by(samples: Samples, name: str, label: str) -> dict[str, Buckets]:
    """Return the buckets of the histogram with this name, by the value of one label. Samples
    without the label are under the empty value."""
    found: dict[str, Buckets] = {}
    for labels, count in samples.get(f"{name}_bucket", {}).items():
        named = dict(labels)
        bound = _bound(named.get("le", ""))
        if bound is not None:
            sums = found.setdefault(named.get(label, ""), {})
            sums[bound] = sums.get(bound, 0.0) + count
    return {value: dict(sorted(sums.items())) for value, sums in found.items()}


def add_buckets(sums: Buckets, more: Mapping[float, float]) -> None:
    """Add the histogram `more` to the histogram `sums`, in place. REQUIRES: equal bucket bounds, or
    no bounds in one of the two."""
    for bound, count in more.items():
        sums[bound] = sums.get(bound, 0.0) + count


def together(parts: Iterable[Mapping[float, float]]) -> Buckets:
    """Return the sum of several histograms. REQUIRES: the same as for add_buckets()."""
    sums: Buckets = {}
    for part in parts:
        add_buckets(sums, part)
    return dict(sorted(sums.items()))


def observed(buckets: Mapping[float, float]) -> float:
    """Return the number of a histogram's observations."""
    return max(buckets.values(), default=0.0)


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the value not exceeded by `share` of a histogram's observations; None without
    observations. An observation over the last finite bound counts as the bound itself."""
    rank = share * observed(buckets)
    if rank <= 0:
        return None
    low = below = 0.0
    for bound, count in buckets.items():
        if count >= rank:
            return low if math.isinf(bound) else _between(low, bound, rank - below, count - below)
        low, below = bound, count
    return low


def share_within(buckets: Mapping[float, float], target: float) -> float | None:
    """Return the share of a histogram's observations of at most `target`, from 0 to 1; None without
    any."""
    whole = observed(buckets)
    if whole <= 0:
        return None
    low = below = 0.0
    for bound, count in buckets.items():
        if target < bound:
            part = 0.0 if math.isinf(bound) else (target - low) / (bound - low)
            return (below + (count - below) * part) / whole
        low, below = bound, count
    return 1.0


def _between(low: float, high: float, rank: float, count: float) -> float:
    return low + (high - low) * (rank / count if count else 1.0)


def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


SPAN_SECONDS = 60.0
"""Time span in seconds of rates and percentiles. It is shorter for a node known for a shorter
time."""

_KEPT = 4
_GROWING = (GENERATED, ANSWERED[0], LOOKED_UP[0])


@dataclass(frozen=True)
class Gained:
    """The gains of a node's counters over `seconds`, a positive time. added: the gain of each
    counter."""

    seconds: float
    added: Samples

    def rate(self, name: str) -> float | None:
        """Return the gain a second of the counter `name`, without labels; None if the node has no
        such counter."""
        added = one(self.added, name)
        return None if added is None else added / self.seconds


class RecentSamples:
    def __init__(self) -> None:
        self._kept: deque[tuple[float, Samples]] = deque()
        self.latest: Samples = {}
        self.gained: Gained | None = None
        """Recent gains of the node's counters; None before two samples."""

    def take(self, at: float, samples: Samples) -> None:
        """Record a node's samples; set `gained`. at: seconds of a monotonic clock."""
        if _began_anew(self.latest, samples):
            self._kept.clear()
        self.latest = samples
        # Replace the last sample until it is far enough from the one before.
        if len(self._kept) > 1 and at - self._kept[-2][0] < SPAN_SECONDS / _KEPT:
            self._kept.pop()
        self._kept.append((at, samples))
        while len(self._kept) > 2 and at - self._kept[1][0] >= SPAN_SECONDS:
            self._kept.popleft()
        (begun, earlier), (ended, later) = self._kept[0], self._kept[-1]
        took = ended - begun
        self.gained = Gained(took, difference(later, earlier)) if took > 0 else None


def _began_anew(before: Samples, now: Samples) -> bool:
    if one(before, STARTED) != one(now, STARTED):
        return True
    return any((one(now, name) or 0.0) < (one(before, name) or 0.0) for name in _GROWING)
