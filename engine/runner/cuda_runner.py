"""Runs planned forwards on a GPU: decoding rows by a captured graph, prompts eagerly behind it.

Owns the lanes, the rows and the page table; shares model and arena. Everything joins one stream,
the current one, and nothing waits for the GPU but Flight.land(). Thread rule: the engine loop's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tasuki.engine.forward_plan import Work
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.batch import Batch, SequenceSlice
from tasuki.model.hooks import NullHooks
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.model.ops.sampling.sample import sample, sample_kept
from tasuki.model.ops.sampling.top_k_top_p import cut
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.utils.progress import Progress, no_progress

from .base import Passed, work_slice
from .block_table import PageTable
from .cuda_graphs import DecodeGraphs
from .device_batch import DeviceRows, DrawnRows
from .last_tokens import Lanes
from .layer_events import EventTicks

_FAR_TOKENS = 32 * 1024


@dataclass(frozen=True)
class _Part:
    """Rows of one batch whose tokens are on their way."""

    rows: Sequence[Work]
    drawn: DrawnRows


@dataclass(frozen=True)
class DeviceFlight:
    work: Sequence[Work]
    parts: Sequence[_Part]
    before: torch.cuda.Event
    started: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def idle_seconds(self) -> float:
        return float(self.before.elapsed_time(self.started)) / 1000

    def land(self) -> list[Sampled | None]:
        self.ended.synchronize()
        tokens: dict[int, Sampled] = {}
        for part in self.parts:
            sampled = part.drawn.sampled(len(part.rows))
            tokens |= {id(item): token for item, token in zip(part.rows, sampled, strict=True)}
        return [tokens.get(id(item)) for item in self.work]


class DeviceRunner:
    def __init__(
        self,
        model: Qwen35Model,
        arena: Arena,
        ticks: EventTicks | None,
        *,
        max_batch: int,
        max_position: int,
        progress: Progress = no_progress,
    ) -> None:
        """Captures the graphs, which progress counts. ticks: told of the layers of prompts, if
        anybody is to know: what decodes hands nothing on. REQUIRES: the model has Triton's
        operators."""
        backend = model.backend
        assert isinstance(backend, TritonBackend)
        layout, device = arena.layout, arena.bytes.device
        pages = min(-(-max_position // PAGE_TOKENS), arena.slabs * layout.pages_per_slab)
        self._model = model
        self._backend = backend
        self._arena = arena
        self._ticks = ticks
        self._lanes = Lanes(arena.slabs, device)
        self._answers = DeviceRows(max_batch, self._lanes.scratch, device)
        self._prompts = DeviceRows(max_batch, self._lanes.scratch, device)
        self._table = PageTable(max_batch, pages, device)
        self._graphs = DecodeGraphs(
            model, backend, arena, self._answers, self._table.table, self._lanes, progress
        )
        self._warm_up()
        self._ended = _recorded(timed=True)

    def _warm_up(self) -> None:
        """Let the kernels of prompts be compiled for every kind of length before a client waits.

        REQUIRES: nothing in the arena is used yet."""
        far = min(_FAR_TOKENS, self._model.config.max_position - PAGE_TOKENS)
        # Triton compiles anew for sizes of one and for sizes that 16 divides; a short run on a long
        # context takes other kernels than a prompt from its start.
        for runs in (((1, 0),), ((3, 0),), ((PAGE_TOKENS, far),), ((1, 0), (PAGE_TOKENS + 1, 0))):
            slices = []
            for length, start in runs:
                pages = [self._arena.layout.blocks_per_slab] * (-(-(start + length) // PAGE_TOKENS))
                slices.append(SequenceSlice([0] * length, start, pages, 0, 0))
            self._model.forward(Batch.pack(slices), self._arena, NullHooks())
        torch.cuda.synchronize()

    def prepare(self) -> None:
        self._backend.prepare()

    @property
    def ticks(self) -> int:
        return 0 if self._ticks is None else self._ticks.launched

    def passed(self) -> Passed:
        return _recorded().query

    @torch.inference_mode()
    def launch(self, work: Sequence[Work]) -> DeviceFlight:
        # The current device belongs to a thread, and this one did not build the graphs.
        torch.cuda.set_device(self._arena.bytes.device)
        answers = [item for item in work if item.decodes]
        prompts = [item for item in work if not item.decodes]
        parts = []
        before, started = self._ended, _recorded(timed=True)
        if answers:
            parts.append(self._decode(answers))
        if prompts:
            parts.append(self._prefill(prompts))
        self._ended = _recorded(timed=True)
        return DeviceFlight(work, parts, before, started, self._ended)

    def _decode(self, work: Sequence[Work]) -> _Part:
        rows = self._table.seat(work)
        known = {item.lane: item.known_tokens[0] for item in rows if item.known_tokens}
        if known:
            self._lanes.tell(known)
        self._answers.fill(rows)
        logits = self._graphs.replay(len(rows))
        if any(_cuts(item) for item in rows):
            draws = self._answers.draws(len(logits))
            sample_kept(logits, cut(logits, draws), draws, self._answers.rows)
            self._lanes.put(self._answers.lanes(len(logits)), draws.token)
        return _Part(rows, self._answers.read())

    def _prefill(self, work: Sequence[Work]) -> _Part:
        batch = Batch.pack([work_slice(item, item.known_tokens) for item in work])
        operators = self._backend.bind(batch)
        tokens = self._to_device(batch.token_ids)
        hooks = self._ticks or NullHooks()
        branch, residual = self._model.layers(tokens, operators, self._arena, hooks)
        rows = [item for item in work if item.samples]
        if rows:
            ends = batch.cu_seqlens[1:] - 1
            last = self._to_device(ends[[item.samples for item in work]])
            logits = self._model.head(branch[last], residual[last], operators)
            self._prompts.fill(rows)
            draws = self._prompts.draws(len(rows))
            if any(_cuts(item) for item in rows):
                sample_kept(logits, cut(logits, draws), draws, self._prompts.rows)
            else:
                sample(logits, draws, self._prompts.rows)
            self._lanes.put(self._prompts.lanes(len(rows)), draws.token)
        return _Part(rows, self._prompts.read())

    def _to_device(self, host: torch.Tensor) -> torch.Tensor:
        return host.pin_memory().to(self._arena.bytes.device, non_blocking=True)


def _recorded(*, timed: bool = False) -> torch.cuda.Event:
    """An event behind everything that the current stream was given."""
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _cuts(item: Work) -> bool:
    sampling = item.request.sampling
    return sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1)
