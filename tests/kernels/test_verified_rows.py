"""Rows with drafts as rows of one token, and the sampled tokens that count."""

import numpy as np
import torch

from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.runner.draft_rows import VerifiedRows
from tasuki.engine.runner.eager_sampler import TopTokens
from tasuki.engine.runner.rows import ResolvedRows, token_rows, widths
from tasuki.model.ops.sampling.reference import Sampled


def test_there_is_a_width_for_every_count_of_drafts() -> None:
    for drafts in range(1, 8):
        found = widths(drafts)
        assert found == sorted(set(found)) and found[-1] == drafts + 1
        for tokens in range(2, drafts + 2):
            assert next(width for width in found if width >= tokens) < 2 * tokens


def test_tokens_of_rows_stand_behind_each_other_and_padding_nowhere() -> None:
    def column(*values: int) -> np.ndarray:
        return np.array(values, dtype=np.int32)

    nothing = np.zeros(2, dtype=bool)
    rows = ResolvedRows(
        batch_indices=column(7, 3),
        starts=column(0, 90),
        lengths=column(3, 2),
        read_slots=column(1, 2),
        write_slots=column(4, 5),
        num_sampled=column(3, 2),
        tokens_at=column(0, 3),
        at_index=nothing,
        decodes=nothing,
        verifies=~nothing,
        drafts_at_index=nothing,
        rope_deltas=column(-2, 0),
    )
    each = token_rows(rows, 3)
    assert each.batch_indices.tolist() == [7, 7, 7, 3, 3, 3]
    assert each.starts.tolist() == [0, 1, 2, 90, 91, -1]
    assert each.stops.tolist() == [1, 2, 3, 91, 92, 0]
    assert each.rope_deltas.tolist() == [-2, -2, -2, 0, 0, 0]
    assert token_rows(rows.take(np.array([1])), 2).starts.tolist() == [90, 91]


def test_a_draw_counts_where_the_draft_before_it_was_drawn() -> None:
    drawn = torch.zeros(3, 16, dtype=torch.int32)
    drawn[0, :12] = torch.tensor([5, 6, 7, 8, 5, 9, 7, 0, 1, 0, 0, 0])
    drawn.view(torch.float32)[1:, :12] = torch.arange(24).view(2, 12).float()
    tops = TopTokens([1, 5], [1, 2], torch.tensor([[6, 0], [9, 4]]), torch.zeros(2, 2))
    own = [Sampled(3, -1.0, 2.0, ((3, -1.0),)), Sampled(4, -2.0, 1.0)]
    verified = VerifiedRows(
        rows=np.array([2, 0, 1, 3]),
        # All accepted; the second not; the first not; sampled elsewhere.
        lengths=np.array([4, 3, 2, 3], dtype=np.int32),
        ids=torch.tensor([9, 5, 6, 7, 9, 5, 8, 9, 9, 2, 1, 0, 9, 3, 9, 0, 4, 4]),
        width=4,
        sampled=torch.cat([drawn, torch.zeros_like(drawn)], dim=1),
        tops=[tops],
        adjusted={3: own},
    )
    found = SampledTokens.nothing(5)
    first, behind = verified.put(found)
    assert found.tokens.tolist() == [5, 1, 5, 3, 0]
    assert found.logprobs[:4].tolist() == [4, 8, 0, -1]
    assert found.margins[:4].tolist() == [16, 20, 12, 2]
    assert [token.token for token in behind[2]] == [6, 7, 8]
    assert behind[2][0] == Sampled(6, 1.0, 13.0, ((6, 0.0),))
    assert behind[0] == (Sampled(9, 5.0, 17.0, ((9, 0.0), (4, 0.0))),)
    assert behind[1] == ()
    assert behind[3] == (own[1],)
    assert first == {3: own[0].top}
