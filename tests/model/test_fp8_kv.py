"""Keys and values as FP8 rows in the wire's format. Every reader reads them as stored. They need
half of bf16's pages and are close to the unrounded values."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch
from tasuki.model.named_checkpoints import embedded_model
from tasuki.model.ops.attention import reference
from tasuki.model.ops.attention.page_rows import fp8_views, read_pages, write_rows
from tasuki.model.ops.row_room import RowRoom
from tasuki.pycache.arena import Arena
from tasuki.pycache.fp8_rows import decode_rows, encode_rows
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.parts import FP8_ROWS
from tasuki.server.text.tokenizer import Tokenizer
from tasuki.transfer.precision.wire_layout import RowFormat, WireError, WireUnits
from tasuki.transfer.settings import Precision, WirePrecision
from tests.harness.goldens import Request, Workspace, final_hidden, golden, load_model, logits_of
from tests.harness.loopback_pair import DRAFT, FULL, GDN, small_layout
from tests.harness.qwen35 import load_config, load_weights, published_or_folder

MOST_KL = 0.01
"""Nats a token on a trained model; the same bound as for the published quantisations."""
MODEL = "small-dense"
TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, "
    "must be in want of a wife. However little known the feelings or views of such a man may be "
)


@pytest.mark.parametrize("name", ["9b", "27b", "35b-a3b", "122b-a10b"])
def test_the_same_bytes_hold_nearly_twice_the_pages(name: str) -> None:
    config = published_or_folder(name)
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    small = config.cache_layout(FP8_ROWS, "bfloat16", "float32")
    cache = small.regions[0].cache
    assert small.block_bytes == cache.heads * cache.head_bytes
    assert cache.head_bytes == 2 * PAGE_TOKENS * (config.head_dim + 1)
    assert layout.page_bytes / small.page_bytes >= 1.98
    arena = 64 * 2**30
    pages = [one.pages_per_slab * (arena // one.slab_bytes) for one in (layout, small)]
    assert pages[1] / pages[0] >= 1.9
    assert small.slot_bytes == layout.slot_bytes


def test_every_block_of_an_arena_has_one_length_and_stride() -> None:
    layout = small_layout((FULL, GDN, GDN, FULL, DRAFT), kv_dtype=FP8_ROWS)
    assert {part.shape for region in layout.regions for part in region.parts} == {(1, 2 * 64 * 9)}
    arena = Arena(layout, 3)
    assert {(kv.dtype, kv.stride()) for kv in arena.views("kv")} == {
        (torch.uint8, (layout.block_bytes, layout.regions[0].cache.head_bytes, 1))
    }


def test_a_head_of_a_page_is_what_the_wire_makes_of_it() -> None:
    heads, width = 3, 40
    k, v = torch.randn(2, PAGE_TOKENS, heads, width).mul(3).unbind()
    layout = small_layout(kv_heads=heads, head_dim=width, kv_dtype=FP8_ROWS)
    kv = Arena(layout, 2).views("kv")[0]
    page = torch.full((PAGE_TOKENS,), 1)
    write_rows(k, v, kv, (page, torch.arange(PAGE_TOKENS)))
    rows = torch.stack((k, v)).permute(2, 0, 1, 3).reshape(heads, 2 * PAGE_TOKENS, width)
    wire = RowFormat(Precision.FP8, 2 * PAGE_TOKENS, width)
    assert wire.encoded_bytes == layout.regions[0].cache.head_bytes
    assert torch.equal(kv[1], wire.encode(rows))
    keys, values = read_pages(kv, torch.tensor([1]), torch.float32, RowRoom())
    assert torch.equal(torch.cat((keys, values), 1), wire.decode(kv[1], torch.float32))
    # In bf16 both factors are exact, and so is their product.
    halves = read_pages(kv, torch.tensor([1]), torch.bfloat16, RowRoom())
    assert torch.equal(halves[0].float(), keys) and torch.equal(halves[1].float(), values)


def test_a_row_alone_decides_its_scale() -> None:
    layout = small_layout(kv_dtype=FP8_ROWS)
    kv = Arena(layout, 2).views("kv")[0]
    kv.fill_(0xFF)
    small, large = torch.full((1, 1, 8), 2.0**-10), torch.full((1, 1, 8), 3.0e4)
    for token, row in enumerate((small, large, torch.zeros(1, 1, 8))):
        write_rows(row, -row, kv, (torch.tensor([0]), torch.tensor([token])))
    keys, values = read_pages(kv, torch.tensor([0]), torch.float32, RowRoom())
    assert torch.equal(keys[:, 0], small[0]) and torch.equal(values[:, 0], -small[0])
    assert (keys[0, 1] - 3.0e4).abs().max() <= 3.0e4 / 16
    assert (keys[0, 2] == 0).all() and keys[0, 3:].isnan().all()
    _, scales = fp8_views(kv)
    assert scales[0, 0, 0, 0] < scales[0, 0, 0, 1]


@pytest.mark.parametrize("wire", [Precision.FP8, Precision.BF16])
def test_a_wire_that_rounds_again_is_refused(wire: Precision) -> None:
    layout = small_layout(kv_dtype=FP8_ROWS)
    with pytest.raises(WireError, match=f"wire_kv {wire.value} saves nothing over fp8"):
        WireUnits.of(layout, WirePrecision(kv=wire))
    states = WireUnits.of(layout, WirePrecision(state=Precision.FP8))
    assert states.block_length(3) == layout.block_bytes and states.form(3) is None


def run(model: Qwen35Model, kv_dtype: str | None, prompt: list[int], chunk: int) -> Tensor:
    request = Request(Workspace(model, kv_dtype=kv_dtype), len(prompt))
    for start in range(0, len(prompt), chunk):
        logits = request.forward(prompt[start : start + chunk])
    return logits


@pytest.mark.parametrize("chunk", [4096, 64, 100, 1])
def test_all_that_attends_reads_what_was_stored(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result equals pages of float32 bit for bit if their rows are rounded before they are
    written. A query that read its own chunk's unrounded rows would show."""
    prompt = golden(MODEL, "long").prompt[: 40 if chunk == 1 else None]
    model = load_model(MODEL)
    stored = run(model, FP8_ROWS, prompt, chunk)

    def rounded(k: Tensor, v: Tensor, kv: Tensor, places: tuple[Tensor, Tensor]) -> None:
        k, v = (decode_rows(*encode_rows(rows), torch.float32) for rows in (k, v))
        write_rows(k, v, kv, places)

    exact = run(model, None, prompt, chunk)
    monkeypatch.setattr(reference, "write_rows", rounded)
    assert torch.equal(stored, run(model, None, prompt, chunk))
    assert not torch.equal(stored, exact), "nothing was rounded"


@pytest.fixture(scope="module")
def embedded() -> Iterator[tuple[Qwen35Model, list[int]]]:
    folder = embedded_model()
    config = load_config(folder)
    tokenizer = Tokenizer.load(folder)
    assert tokenizer is not None
    tokens = tokenizer.encode(TEXT * 4)
    yield Qwen35Model(config, load_weights(folder, config, torch.float32)), tokens


def log_probabilities(model: Qwen35Model, kv_dtype: str | None, tokens: list[int]) -> Tensor:
    request = Request(Workspace(model, kv_dtype=kv_dtype), len(tokens))
    hidden = final_hidden(model, Batch.pack([request.slice(tokens)]), request.workspace.arena)
    return logits_of(model, hidden).double().log_softmax(-1)


def test_a_trained_model_says_nearly_the_same(embedded: tuple[Qwen35Model, list[int]]) -> None:
    model, tokens = embedded
    assert len(tokens) > 150
    exact, rounded = map(partial(log_probabilities, model, tokens=tokens), (None, FP8_ROWS))
    divergence = (exact.exp() * (exact - rounded)).sum(-1)
    assert 0 < float(divergence.mean()) <= MOST_KL
    assert float((exact.argmax(-1) == rounded.argmax(-1)).double().mean()) >= 0.97
