"""Neither the rest of a batch nor the cuts of a sequence change a result; slots are read first."""

import pytest
import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Batch, SequenceSlice
from tests.harness.goldens import Request, Workspace
from tests.harness.model_shapes import DENSE, MOE, tiny_model

TOKENS = torch.randint(0, DENSE.vocab, (400,), generator=torch.Generator().manual_seed(7)).tolist()


def states(request: Request) -> list[torch.Tensor]:
    """Return views of the arena for every layer of both kinds."""
    return [*request.workspace.arena.views("conv"), *request.workspace.arena.views("ssm")]


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_mixed_batch_equals_separate_runs(config: DeltaNetConfig) -> None:
    model = tiny_model(config)
    prompts = [TOKENS[:1], TOKENS[5:8], TOKENS[10:75], TOKENS[80:280], TOKENS[3:4], TOKENS[50:180]]
    rest = ((200, 201), (210, 211), (220, 350), (5, 6), (9, 11), (0, 64))
    more = [TOKENS[begin:end] for begin, end in rest]
    alone = []
    for prompt, rest in zip(prompts, more, strict=True):
        request = Request(Workspace(model), 400)
        request.forward(prompt)
        alone.append(request.forward(rest))
    together = Workspace(model, slabs=80)
    requests = [Request(together, 400) for _ in prompts]
    together.forward(*(r.slice(p) for r, p in zip(requests, prompts, strict=True)))
    logits = together.forward(*(r.slice(m) for r, m in zip(requests, more, strict=True)))
    torch.testing.assert_close(logits, torch.stack(alone), atol=1e-4, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 63, 64, 65, 130])
def test_one_forward_equals_token_by_token(length: int) -> None:
    model = tiny_model(DENSE)
    whole, stepped = (Request(Workspace(model), 200) for _ in range(2))
    want = torch.empty(0)
    for token in TOKENS[:length]:
        want = stepped.forward([token])
    torch.testing.assert_close(whole.forward(TOKENS[:length]), want, atol=1e-4, rtol=0)
    for left, right in zip(states(whole), states(stepped), strict=True):
        torch.testing.assert_close(left[whole.slots[0]], right[stepped.slots[0]], atol=1e-4, rtol=0)


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 64, 65, 128, 129])
def test_checkpoint_at_any_token_resumes(cut: int) -> None:
    model = tiny_model(DENSE)
    workspace = Workspace(model)
    first = Request(workspace, 200)
    slot, final = workspace.dirty_slot(), workspace.dirty_slot()
    want = first.forward(TOKENS[:130], checkpoints=((cut, slot), (130, final)))
    second = Request(workspace, 200)
    second.pages, second.tokens, second.slots[0] = first.pages, cut, slot
    if cut < 130:
        got = second.forward(TOKENS[cut:130])
        torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    for view in states(first):
        assert torch.equal(view[final], view[first.slots[0]])


def test_decode_checkpoint_is_the_state_written() -> None:
    workspace = Workspace(tiny_model(DENSE))
    request = Request(workspace, 200)
    request.forward(TOKENS[:10])
    slot = workspace.dirty_slot()
    request.forward(TOKENS[10:11], checkpoints=((11, slot),))
    for view in states(request):
        assert torch.equal(view[slot], view[request.slots[0]])


@pytest.mark.parametrize("length", [1, 70])
def test_the_state_one_step_back_stays_intact(length: int) -> None:
    request = Request(Workspace(tiny_model(DENSE)), 200)
    request.forward(TOKENS[:20])
    before = [view[request.slots[0]].clone() for view in states(request)]
    request.forward(TOKENS[20 : 20 + length])
    for view, kept in zip(states(request), before, strict=True):
        assert torch.equal(view[request.slots[1]], kept)


@pytest.mark.parametrize("length", [1, 70])
def test_read_slot_may_be_write_slot(length: int) -> None:
    model = tiny_model(DENSE)
    apart, same = (Request(Workspace(model), 200) for _ in range(2))
    same.slots[1] = same.slots[0]
    for part in (TOKENS[:20], TOKENS[20 : 20 + length]):
        want, got = apart.forward(part), same.forward(part)
    assert torch.equal(got, want)


def test_nothing_outside_the_request_is_written() -> None:
    workspace = Workspace(tiny_model(DENSE))
    request = Request(workspace, 130)
    layout = workspace.arena.layout
    slabs = workspace.arena.bytes.view(workspace.arena.slabs, layout.slab_bytes)
    used = {page // layout.blocks_per_slab for page in request.pages} | set(request.slots)
    others = [slab for slab in range(workspace.arena.slabs) if slab not in used]
    request.forward(TOKENS[:100])
    request.forward(TOKENS[100:101])
    assert (slabs[others] == 0xFF).all()


def test_cache_may_be_narrower_than_the_model() -> None:
    model = tiny_model(DENSE)
    exact, narrow = Workspace(model), Workspace(model, cache_dtype="bfloat16")
    left, right = Request(exact, 200), Request(narrow, 200)
    for begin, end in ((0, 70), (70, 71), (71, 140)):
        want, got = left.forward(TOKENS[begin:end]), right.forward(TOKENS[begin:end])
    assert not torch.equal(got, want)
    assert torch.nn.functional.cosine_similarity(got, want, dim=0) > 0.99


def test_pack_lays_sequences_end_to_end() -> None:
    batch = Batch.pack(
        [
            SequenceSlice([5, 6, 7], 62, [9, 4], 1, 2, [(65, 8), (64, 3)]),
            SequenceSlice([1], 0, [7], 5, 5),
        ]
    )
    assert batch.token_ids.tolist() == [5, 6, 7, 1]
    assert batch.positions.tolist() == [62, 63, 64, 0]
    assert batch.cu_seqlens.tolist() == [0, 3, 4]
    assert batch.context_lens.tolist() == [62, 0]
    assert batch.page_table.tolist() == [[9, 4], [7, 0]]
    assert batch.checkpoints == (((2, 3), (3, 8)), ())


@pytest.mark.parametrize("slices", [[], [SequenceSlice([], 0, [], 0, 0)]])
def test_empty_work_is_refused(slices: list[SequenceSlice]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Batch.pack(slices)
