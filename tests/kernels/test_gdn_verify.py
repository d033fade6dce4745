"""Rows with drafts through a GDN layer: the CPU path's outputs without a written slot. Folds, alone
or by the next rows, leave the states of as many single steps, bit by bit."""

from collections.abc import Sequence

import pytest
import torch

from tasuki.model.forward import FoldRows, SequenceSlice
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.gdn.verify import inputs
from tasuki.model.ops.gdn.verify.fold import fold_columns, gdn_fold
from tasuki.model.ops.gdn.verify.kept_inputs import KeptInputs, KeptTurns, kept_bytes
from tasuki.model.ops.gdn.verify.rows import RowFolds, gdn_verify
from tests.harness.covering import every_value

from .gdn import (
    STEP_SHAPES,
    GdnCase,
    Heads,
    Shape,
    each_step_shape,
    gdn_case,
    oracle,
    some_step_shapes,
)
from .tensors import close, count, int32

pytestmark = pytest.mark.usefixtures("poisoned_empty")

COUNTS = tuple(range(1, 9)) if torch.cuda.is_available() else (1, 3)
"""Tokens of a row; the interpreter takes a tenth of a second a token."""


def kept_of(case: GdnCase, places: int, tokens: int, layers: int = 1) -> KeptTurns:
    dtype = case.weights.conv.dtype
    return KeptTurns.empty(case.config, layers, places, tokens, dtype, case.conv.device)


def nothing_folded(slots: list[int], device: torch.device) -> RowFolds:
    zeros = [0] * len(slots)
    return RowFolds(int32(zeros, device), int32(zeros, device), int32(slots, device))


def verify(
    case: GdnCase,
    projected: torch.Tensor,
    slots: list[int],
    counts: list[int],
    kept: KeptTurns,
    rows: int | None = None,
    turn: int = 0,
    folds: RowFolds | None = None,
    starts: Sequence[int] = (),
) -> torch.Tensor:
    """Verify rows. starts: tokens before each row; none: 5."""
    device = case.conv.device
    tokens = len(projected) // len(slots)
    positions = [start + at for start in starts or [5] * len(slots) for at in range(tokens)]
    return gdn_verify(
        projected,
        case.weights,
        case.config,
        case.conv,
        case.ssm,
        int32(slots, device),
        int32(counts, device),
        count(len(slots) if rows is None else rows, device),
        int32(positions, device),
        kept.layer(0),
        int32([turn], device),
        folds or nothing_folded(slots, device),
    )


def fold(
    case: GdnCase,
    kept: KeptTurns,
    places: list[int],
    counts: list[int],
    *slots: list[int],
    turn: int = 0,
    starts: Sequence[int] = (),
) -> None:
    """Fold rows. starts: tokens before each row; none: 5."""
    device = case.conv.device
    tables = (int32(values, device) for values in (places, counts, *slots))
    before = int32(starts or [5] * len(places), device)
    gdn_fold(kept.of(turn), case.config, [case.conv], [case.ssm], FoldRows(*tables), before)


@each_step_shape
def test_rows_equal_the_cpu_path_and_write_no_slot(
    shape: Shape,
    device: torch.device,
) -> None:
    case = shape.case(slots=7, device=device)
    slots, counts, tokens = [0, 4, 3], [4, 1, 2], 4
    case.fill(slots)
    # The fourth row is padding, and its slot names memory that must not be touched.
    projected = case.projected(4 * tokens)
    kept = kept_of(case, places=5, tokens=6)
    output = verify(case, projected, [*slots, 6], [*counts, 3], kept, rows=3)
    for row, (slot, length) in enumerate(zip(slots, counts, strict=True)):
        first = row * tokens
        own = [SequenceSlice([1] * length, 5, [0], slot, None, stepped=True)]
        expected = oracle(case, projected[first : first + length], own)
        expected.check(output[first : first + length], case, shape.tolerance)
        assert not output[first + length : first + tokens].any()
    assert output[3 * tokens :].isnan().all()
    assert kept.raw[0, :, 3:].isnan().all() and kept.scalars[0, :, 3:].isnan().all()
    assert kept.raw[1].isnan().all() and kept.scalars[1].isnan().all()


@some_step_shapes
def test_whole_rows_of_a_program_keep_what_tokens_of_one_do(
    shape: Shape,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bit by bit, in rows of fewer tokens than the others too."""
    case = shape.case(slots=7, device=device)
    slots, counts, tokens = [0, 4, 3], [4, 1, 2], 4
    case.fill(slots)
    projected = case.projected(3 * tokens)
    found = []
    for few in (len(slots), 0):
        monkeypatch.setattr(inputs, "_FEW_ROWS", few)
        kept = kept_of(case, places=3, tokens=tokens)
        output = verify(case, projected, slots, counts, kept)
        found.append((output, kept.raw, kept.mixed, kept.scalars))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


@every_value(shape=STEP_SHAPES, held={"1": 1, "4": 4})
def test_a_fold_leaves_what_the_cpu_path_stores(
    shape: Shape,
    held: int,
    device: torch.device,
) -> None:
    case = shape.case(slots=7, device=device)
    case.fill([0, 4])
    projected = case.projected(8)
    kept = kept_of(case, places=2, tokens=4)
    verify(case, projected, [0, 4], [4, 4], kept)
    # Slot to slot, and in place; the other way round than the rows were.
    slices = [
        SequenceSlice([1] * held, 5, [0], 0, 5, stepped=True),
        SequenceSlice([1] * held, 5, [0], 4, 4, stepped=True),
    ]
    own = torch.cat([projected[:held], projected[4 : 4 + held]])
    expected = oracle(case, own, slices)
    fold(case, kept, [1, 0], [held, held], [4, 0], [4, 5])
    expected.check(expected.output, case, shape.tolerance)


@some_step_shapes
def test_any_count_of_tokens_is_as_many_single_ones_bit_by_bit(
    shape: Shape,
    device: torch.device,
) -> None:
    for held in COUNTS:
        for tokens in {held, max(COUNTS)}:
            case = shape.case(slots=2, device=device)
            single = shape.case(slots=2, device=device)
            case.fill([0])
            single.conv.copy_(case.conv)
            single.ssm.copy_(case.ssm)
            projected = case.projected(tokens)
            kept, one = kept_of(case, 1, tokens), kept_of(case, 1, 1)
            together = verify(case, projected, [0], [tokens], kept)
            fold(case, kept, [0], [held], [0], [1])
            alone = []
            for token in range(held):
                slot = min(token, 1)
                own, start = projected[token : token + 1], [5 + token]
                alone.append(verify(single, own, [slot], [1], one, starts=start))
                fold(single, one, [0], [1], [slot], [1], starts=start)
            assert torch.equal(together[:held], torch.cat(alone))
            assert torch.equal(case.ssm[1], single.ssm[1])
            assert torch.equal(case.conv[1], single.conv[1])


@each_step_shape
def test_a_fold_is_as_many_decode_steps(
    shape: Shape,
    device: torch.device,
) -> None:
    """States are equal bit by bit if no compiler fuses products and sums, except between two
    kernels. Outputs are equal except for the order of a norm's squares."""
    held = max(COUNTS)
    case = shape.case(slots=2, device=device)
    stepped = shape.case(slots=2, device=device)
    case.fill([0])
    stepped.conv.copy_(case.conv)
    stepped.ssm.copy_(case.ssm)
    projected = case.projected(held)
    kept = kept_of(case, 1, held)
    together = verify(case, projected, [0], [held], kept)
    fold(case, kept, [0], [held], [0], [1])
    for token in range(held):
        slot, one = int32([min(token, 1)], device), count(1, device)
        output = gdn_decode(
            projected[token : token + 1],
            stepped.weights,
            stepped.config,
            stepped.conv,
            stepped.ssm,
            slot,
            int32([1], device),
            one,
            int32([5 + token], device),
        )
        close(output, together[token : token + 1].cpu().float(), shape.tolerance)
    close(case.ssm[1], stepped.ssm[1].cpu().float(), 0 if device.type == "cpu" else shape.tolerance)
    assert torch.equal(case.conv[1], stepped.conv[1])


@some_step_shapes
def test_rows_fold_their_last_tokens_as_a_fold_before_them_does(
    shape: Shape,
    device: torch.device,
) -> None:
    """The states are equal bit by bit over two successive steps. Some rows move, one folds nothing,
    and some are padding; their slots must not be touched."""
    case = shape.case(slots=9, device=device)
    apart = shape.case(slots=9, device=device)
    case.fill([0, 4, 3])
    apart.conv.copy_(case.conv)
    apart.ssm.copy_(case.ssm)
    first, tokens = [0, 4], 3
    projected, after = case.projected(2 * tokens), case.projected(4 * tokens)
    kept, own = kept_of(case, places=4, tokens=4), kept_of(case, places=4, tokens=4)
    verify(case, projected, first, [3, 2], kept)
    verify(apart, projected, first, [3, 2], own)
    # In the order of the next rows: the second earlier row, a new one, the first earlier row.
    places, held, before, behind = [1, 0, 0], [1, 0, 3], [4, 3, 0], [5, 3, 2]
    tables = [[column[row] for row in (0, 2)] for column in (places, held, before, behind)]
    folds = RowFolds(
        int32([*held, 0], device), int32([*places, 0], device), int32([*before, 7], device)
    )
    columns = FoldRows(folds.places, folds.counts, folds.slots, int32([*behind, 8], device))
    fold_columns(kept, case.config, [case.conv], columns, int32([1], device))
    slots, counts, starts = [*behind, 8], [3, 2, 1, 3], [6, 9, 8, 0]
    output = verify(case, after, slots, counts, kept, 3, 1, folds, starts)
    fold(apart, own, *tables)
    expected = verify(apart, after, slots, counts, own, 3, 1, starts=starts)
    assert torch.equal(output[: 3 * tokens], expected[: 3 * tokens])
    assert output[3 * tokens :].isnan().all()
    for mine, theirs in ((case.ssm, apart.ssm), (case.conv, apart.conv)):
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert torch.equal(mine.nan_to_num(), theirs.nan_to_num())
    for name in vars(own.of(1)):
        mine, theirs = getattr(kept.of(1), name), getattr(own.of(1), name)
        assert torch.equal(mine[0, 0, :3], theirs[0, 0, :3]) and not mine[0, 0, :3].isnan().any()


def test_one_fold_stores_every_layer(device: torch.device) -> None:
    heads = Heads(1, 2, 32, 32)
    case = gdn_case(heads, 9, torch.float32, torch.float32, device)
    memory = torch.randn(4, case.ssm[0].numel() * 2, device=device)
    # Slots 0 to 3, with the state of layer 0 and then of layer 1 in each.
    ssm = [memory[:, half * 2048 : half * 2048 + 2048].view(4, 2, 32, 32) for half in range(2)]
    columns = torch.randn(4, 2 * case.conv[0].numel(), device=device)
    width = case.conv[0].numel()
    conv = [columns[:, half * width :][:, :width].view(4, -1, 3) for half in range(2)]
    kept = kept_of(case, 1, 3, layers=2)
    for layer in range(2):
        gdn_verify(
            case.projected(3),
            case.weights,
            case.config,
            conv[layer],
            ssm[layer],
            int32([2], device),
            int32([3], device),
            count(1, device),
            int32([5, 6, 7], device),
            kept.layer(layer),
            int32([0], device),
            nothing_folded([2], device),
        )
    tables = [int32([value], device) for value in (0, 2, 2, 1)]
    before = memory[1].clone()
    starts = int32([5], device)
    gdn_fold(kept.of(0), case.config, conv, ssm, FoldRows(*tables), starts)
    for layer in range(2):
        one = kept.of(0)
        own = KeptInputs(*(getattr(one, name)[layer : layer + 1] for name in vars(one)))
        single = [x[layer].clone() for x in (conv, ssm)]
        gdn_fold(own, case.config, [single[0]], [single[1]], FoldRows(*tables), starts)
        assert torch.equal(ssm[layer], single[1]) and torch.equal(conv[layer], single[0])
    assert not torch.isclose(memory[1], before).any()
    with pytest.raises(ValueError, match="equally"):
        gdn_fold(kept.of(0), case.config, conv, [ssm[1], ssm[0], ssm[1]], FoldRows(*tables), starts)


def test_what_is_kept_is_counted(device: torch.device) -> None:
    case = gdn_case(Heads(1, 2, 32, 32), 1, torch.float32, torch.float32, device)
    kept = kept_of(case, places=3, tokens=5, layers=2)
    taken = sum(getattr(kept, name).numel() * 4 for name in ("raw", "mixed", "scalars"))
    assert taken == 2 * 15 * kept_bytes(case.config, layers=2, itemsize=4)
