"""Sampling outside of the CUDA graph, for rows with logits changed by their requests.

A forward is launched whole, with its graph's own sampler. Rows with adjusted logits are then
sampled again later in the same stream. The new tokens replace the graph's before any reader. A
sample depends on the earlier tokens, and the newest of them may still be in flight. The host waits
for it while this forward runs, so the GPU does not wait.

A thinking budget changes the logits of few positions. The graph samples the other positions of such
a row, and its adjuster gets the tokens later.

Owns the rows sampled here and the tokens not yet passed to an adjuster. Its own buffers are small.
Besides these a step needs a float32 copy of the logits and half as much again, within the plan's
`workspace` (engine/assembly/memory_plan.py). Thread rule: the runner's; one stream.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.model.ops.sampling.logit_adjustments import AdjustedRows, LogitAdjuster
from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, TopLogprobs
from tasuki.model.ops.sampling.sample import sample
from tasuki.model.ops.sampling.sample_adjusted import sample_adjusted
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.ops.sampling.top_logprobs import top_logprobs

from .device_batch import DeviceBatch, LastTokens, SamplingTable, to_device, to_host
from .logits import RowAdjustments, SampledTogether
from .rows import ResolvedRows

_TOP_ROWS = 8
"""Number of rows searched for their likeliest tokens at a time; the search takes 24 bytes of memory
per logit."""


class CountedDraws(Protocol):
    """The sampled tokens of some rows, being copied to the host."""

    def tokens_of(self, places: Sequence[int]) -> Iterable[Sequence[int]]:
        """Return the accepted tokens of each row in `places`, indices of rows. REQUIRES: the stream
        has copied them to the host."""


@dataclass(frozen=True)
class SampledOnce:
    """Rows with one sampled token each. sampled: the tokens, being copied to the host, as in
    DeviceBatch.read()."""

    sampled: Tensor

    def tokens_of(self, places: Sequence[int]) -> Iterable[Sequence[int]]:
        tokens = self.sampled[0].tolist()
        return [(tokens[place],) for place in places]


@dataclass(frozen=True)
class _Untold:
    """Sampled tokens not yet passed to their sequences' adjusters of logits, being copied to the
    host. places: index in `sampled` of each adjuster's row. ended: CUDA event after the copy."""

    adjusters: Sequence[LogitAdjuster]
    places: Sequence[int]
    sampled: CountedDraws
    ended: torch.cuda.Event

    def append(self) -> None:
        """Append the sampled tokens to the adjusters. REQUIRES: they are on the host."""
        sampled = self.sampled.tokens_of(self.places)
        for adjuster, tokens in zip(self.adjusters, sampled, strict=True):
            for token in tokens:
                adjuster.append(token)


@dataclass(frozen=True)
class TopTokens:
    """The likeliest tokens of some rows, being copied to the host. rows: indices of the rows in the
    plan. tokens, logprobs: [n, most wanted]. counts: number of tokens wanted by each row."""

    rows: Sequence[int]
    counts: Sequence[int]
    tokens: Tensor
    logprobs: Tensor

    def of_rows(self) -> list[tuple[int, TopLogprobs]]:
        """Return each row with its likeliest tokens. REQUIRES: they are on the host."""
        columns = (self.rows, self.counts, self.tokens.tolist(), self.logprobs.tolist())
        return [
            (row, tuple(zip(tokens[:count], logprobs[:count], strict=True)))
            for row, count, tokens, logprobs in zip(*columns, strict=True)
        ]


class EagerSampler:
    def __init__(
        self,
        capacity: int,
        vocab: int,
        dtype: torch.dtype,
        sampling: SamplingTable,
        adjustments: RowAdjustments,
        last_tokens: LastTokens,
        device: torch.device,
        together: SampledTogether | None = None,
    ) -> None:
        """capacity: most rows of a forward. vocab, dtype: size and dtype of the logits. sampling,
        adjustments, last_tokens: shared with the runner. together: all ranks of the model, one of
        them with the adjustments; None for one rank."""
        self._sampling = sampling
        self._adjustments = adjustments
        self._last_tokens = last_tokens
        self._device = device
        self._together = together
        self._rows = DeviceBatch(capacity, last_tokens.scratch, device)
        self._untold: list[_Untold] = []
        self._compile(vocab, dtype)

    def _compile(self, vocab: int, dtype: torch.dtype) -> None:
        """Compile kernels before a client waits: kernels for float32 logits, and kernels with token
        masks. Graphs may not contain them."""
        self._rows.clear()
        masks = torch.full((1, 4 * -(-vocab // 32)), 0xFF, dtype=torch.uint8, device=self._device)
        masked = torch.zeros(1, vocab, dtype=dtype, device=self._device)
        sample(masked, self._rows.draws(1), self._rows.rows, mask=masks)
        logits, draws = torch.zeros(1, vocab, device=self._device), self._rows.draws(1)
        sample(logits, draws, self._rows.rows)
        sample(logits, draws, self._rows.rows, cut(logits, draws))
        top_logprobs(logits, MAX_TOP_LOGPROBS)

    @property
    def _leads(self) -> bool:
        return self._together is None or self._together.leads

    def follow(self, rows: ResolvedRows, sampled: CountedDraws) -> None:
        """Remember tokens sampled by the graph, for adjusters of logits depending on them. Do
        nothing on a rank not leading."""
        if not self._leads:
            return
        follows = self._sampling.follows[rows.batch_indices] & ~self._sampling.adjusted(rows)
        if not follows.any():
            return
        self._tell(())
        places = follows.nonzero()[0]
        adjusters = [
            self._adjustments.adjuster(batch_index)
            for batch_index in rows.batch_indices[places].tolist()
        ]
        self._untold.append(_Untold(adjusters, places.tolist(), sampled, recorded()))

    def draw(self, rows: ResolvedRows, logits: Tensor) -> tuple[NDArray[np.int64], Tensor] | None:
        """Sample the rows with adjusted logits. Return their indices in `rows`, and their tokens,
        being copied to the host as in DeviceBatch.read(). Return None if no row is adjusted.
        logits: row i belongs to rows[i]."""
        chosen = self._sampling.adjusted(rows).nonzero()[0]
        if not len(chosen):
            return None
        return chosen, self.draw_all(rows.take(chosen), logits[to_device(chosen, self._device)])

    def draw_all(self, rows: ResolvedRows, logits: Tensor) -> Tensor:
        """Sample all rows, with adjusted logits or not. Return the tokens being copied to the host,
        as in DeviceBatch.read()."""
        self._rows.fill(rows, self._sampling)
        adjusters = self._draw_here(rows, logits) if self._leads else []
        if self._together is not None:
            self._rows.results.copy_(self._together.of_leader(self._rows.results))
        self._last_tokens.put(
            self._rows.batch_indices(len(rows)), self._rows.draws(len(rows)).token
        )
        sampled = self._rows.read()
        if self._leads:
            places = range(len(adjusters))
            self._untold.append(_Untold(adjusters, places, SampledOnce(sampled), recorded()))
        return sampled

    def _draw_here(self, rows: ResolvedRows, logits: Tensor) -> list[LogitAdjuster]:
        """Sample these rows, already filled in, on this rank. Return their adjusters of logits,
        waiting for the sampled tokens."""
        adjusters = [
            self._adjustments.adjuster(batch_index) for batch_index in rows.batch_indices.tolist()
        ]
        self._tell(adjusters)
        adjustments = AdjustedRows.of(adjusters).to(self._device)
        cuts = bool(self._sampling.cuts[rows.batch_indices].any())
        draws = self._rows.draws(len(rows))
        sample_adjusted(logits, adjustments, draws, self._rows.rows, cuts=cuts)
        return adjusters

    def _tell(self, adjusters: Sequence[LogitAdjuster]) -> None:
        """Pass earlier sampled tokens to their adjusters of logits. Wait for tokens needed by
        `adjusters`."""
        needed = {id(item) for item in adjusters if item.params.follows_output}
        still = []
        for draws in self._untold:
            if not needed.isdisjoint(map(id, draws.adjusters)):
                draws.ended.synchronize()
            elif not draws.ended.query():  # type: ignore[no-untyped-call]
                still.append(draws)
                continue
            draws.append()
        self._untold = still

    def top(
        self, numbers: NDArray[np.int64], rows: ResolvedRows, logits: Tensor
    ) -> list[TopTokens]:
        """Return the likeliest tokens of rows with a request for them. numbers: indices of the rows
        in the plan. logits: row i belongs to rows[i]."""
        wanted = self._sampling.top_logprobs[rows.batch_indices]
        chosen = wanted.nonzero()[0]
        found = []
        for first in range(0, len(chosen), _TOP_ROWS):
            some = chosen[first : first + _TOP_ROWS]
            part = logits[to_device(some, self._device)]
            tokens, logprobs = top_logprobs(part, int(wanted[some].max()))
            found.append(
                TopTokens(
                    numbers[some].tolist(),
                    wanted[some].tolist(),
                    to_host(tokens),
                    to_host(logprobs),
                )
            )
        return found


def recorded(*, timed: bool = False) -> torch.cuda.Event:
    """Return a CUDA event recorded now on the current stream. timed: to measure its time."""
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record()
    return event
