"""Lets the model's draft layer guess on a GPU, behind what a forward draws or before it begins: one
graph, in which each guess takes what the one before drew. The drafts stay on the rows' lanes.

Owns the rows' numbers, their pages' table and the graphs; shares model, arena, last tokens and the
lanes' drafts with the runner. A draft is drawn with the temperature, cuts and noise of its
position, as the model will draw there (model/draft_tokens.py is the CPU's). Thread rule: the
runner's; one stream."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.forward_plan import ForwardPlan, Guess, Ints
from tasuki.engine.runner.block_table import BlockTable
from tasuki.engine.runner.device_batch import SamplingTable
from tasuki.engine.runner.last_tokens import LastTokens
from tasuki.engine.runner.sequence_states import ResolvedRows, SequenceStates
from tasuki.engine.runner.verify.draft_verifier import DraftVerifier
from tasuki.engine.runner.verify.lane_drafts import LaneDrafts
from tasuki.engine.runner.verify.token_rows import MOST_ROWS
from tasuki.model.backends.triton_backend import TritonBackend
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import Arena

from .guess_graphs import GuessGraphs
from .guess_rows import GuessRows


class LayerDrafter:
    def __init__(
        self,
        model: Qwen35Model,
        backend: TritonBackend,
        arena: Arena,
        sequences: SequenceStates,
        sampling: SamplingTable,
        lanes: LastTokens,
        verifier: DraftVerifier,
        drafts: LaneDrafts,
        *,
        rows: int,
        pages: int,
    ) -> None:
        """verifier: of the rows that the guesses begin behind. drafts: where they go. rows, pages:
        most of a step, and of a row. REQUIRES: nothing in the arena is used yet; it has a draft
        layer."""
        self._sequences = sequences
        self._sampling = sampling
        self._lanes = lanes
        self._verifier = verifier
        self._drafts = drafts
        self._most = min(rows, MOST_ROWS)
        self._rows = GuessRows(
            self._most, model.config.hidden, lanes, arena.carry[0], verifier.last_drawn
        )
        self._table = BlockTable(self._most, pages, arena.bytes.device)
        self._graphs = GuessGraphs(
            model, backend, arena, self._rows, self._table.table, drafts.tokens
        )

    def first(self, plan: ForwardPlan, rows: ResolvedRows) -> ResolvedRows:
        """What the plan's first guesses ask for, from what the rows' slots carry: the rows, whose
        drafts these are. Nothing of the forward is launched yet. rows: the plan's; of those that
        verify nothing here nothing is guessed."""
        asked = [guess for guess in plan.first_guesses if rows.verifies[guess.row]]
        if not asked:
            return rows
        numbers, wanted = self._seat(asked, rows)
        own = rows.take(numbers)
        self._lanes.put_known(own.lanes, plan.tokens[own.tokens_at])
        # The token drawn last is in the forward still to come.
        stand = replace(own, lengths=np.ones_like(own.lengths))
        self._guess(stand, wanted, [-1] * len(own), own.read_slots)
        on_lane = rows.drafts_on_lane.copy()
        on_lane[numbers] = True
        return replace(rows, drafts_on_lane=on_lane)

    def behind(self, plan: ForwardPlan, rows: ResolvedRows) -> dict[int, int]:
        """What the plan's guesses ask for, behind what its rows drew, as far as there is room for
        them: how many drafts are on the lanes of which rows. REQUIRES: the rows are launched."""
        if not plan.guesses:
            return {}
        numbers, wanted = self._seat(plan.guesses[: self._most], rows)
        own = rows.take(numbers)
        places = [
            self._verifier.place(lane) if verifies else -1
            for lane, verifies in zip(own.lanes.tolist(), own.verifies.tolist(), strict=True)
        ]
        # Behind the first token at least: that is drawn whatever becomes of the drafts.
        least = np.where(own.verifies, own.starts + 1, own.stops)
        stand = replace(own, starts=least, lengths=np.ones_like(own.lengths))
        self._guess(stand, wanted, places, own.write_slots)
        return dict(zip(numbers.tolist(), wanted, strict=True))

    def _seat(
        self, asked: Sequence[Guess], rows: ResolvedRows
    ) -> tuple[NDArray[np.int64], list[int]]:
        """The numbers of the rows as they sit here, and how many drafts each is to have."""
        lanes = [int(rows.lanes[guess.row]) for guess in asked]
        order = self._table.seat([self._sequences.pages(lane) for lane in lanes])
        seated = [asked[place] for place in order]
        numbers = np.array([guess.row for guess in seated], dtype=np.int64)
        return numbers, [guess.count for guess in seated]

    def _guess(
        self, rows: ResolvedRows, wanted: Sequence[int], places: Sequence[int], slots: Ints
    ) -> None:
        self._rows.fill(rows, wanted, places, slots, self._verifier.width, self._sampling)
        cuts = bool(self._sampling.cuts[rows.lanes].any())
        self._graphs.replay(len(rows), max(wanted), cuts=cuts)
        self._drafts.guessed(rows.lanes.tolist(), wanted)
