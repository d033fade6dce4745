"""Attention by spans on a GPU, in the shapes of 9B: a row has the same bits in groups, for itself,
and in a batch of its own. Answers of prompts with a common beginning are those of each alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.engine.config import EngineConfig
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.registry import published_or_folder
from tasuki.model.ops.attention.spans.groups import GroupPlan
from tasuki.model.ops.attention.spans.rule import SpanRule
from tests.gpu.shapes import VOCAB, parts_of
from tests.harness.engines import Lone, submit

# Where no GPU is, tests of kernels must be the first to import Triton. So each test imports it.
GPU = torch.device("cuda")
RULE = SpanRule(least_pages=2, most_spans=132)
COMMON, OWN = 13, 9


def nine_billion() -> DeltaNetConfig:
    found = published_or_folder("9b")
    assert isinstance(found, DeltaNetConfig)
    return found


@dataclass(frozen=True)
class Rows:
    """Rows of up to `tokens` tokens. pages: page ids of each row. lengths: keys of each. counts:
    valid tokens of each."""

    tokens: int
    pages: list[list[int]]
    lengths: np.ndarray[tuple[int], np.dtype[np.int32]]
    counts: np.ndarray[tuple[int], np.dtype[np.int32]]
    q: Tensor
    projected: Tensor

    @staticmethod
    def of(pages: list[list[int]], tokens: int) -> "Rows":
        config, random = nine_billion(), np.random.default_rng(len(pages))
        count, heads = len(pages), config.query_heads
        ends = [64 * len(own) - random.integers(200) for own in pages]
        shape = (count * tokens, 2 * (heads + config.kv_heads) * config.head_dim)
        return Rows(
            tokens,
            pages,
            np.array(ends, dtype=np.int32),
            random.integers(1, tokens + 1, count).astype(np.int32),
            torch.randn(count * tokens, heads, config.head_dim, device=GPU, dtype=torch.bfloat16),
            torch.randn(shape, device=GPU, dtype=torch.bfloat16),
        )

    def take(self, rows: list[int]) -> "Rows":
        at = torch.tensor([row * self.tokens + i for row in rows for i in range(self.tokens)])
        pages = [self.pages[row] for row in rows]
        inputs = (self.lengths[rows], self.counts[rows], self.q[at], self.projected[at])
        return Rows(self.tokens, pages, *inputs)

    def attend(self, kv: Tensor, *, grouped: bool) -> Tensor:
        """Return outputs [rows, tokens, ...], of rows in groups or each for itself."""
        from tasuki.model.ops.attention.spans.attention import SpanWorkspace, attend_spans

        config, count = nine_billion(), len(self.pages)
        made = SpanWorkspace.of(config, count, self.tokens, GPU, RULE)
        if grouped:
            pages = [np.array(own, dtype=np.int32) for own in self.pages]
            made.groups.plan(pages, self.lengths, self.lengths - self.counts + 1)
        table = torch.zeros(count, max(map(len, self.pages)), dtype=torch.int32)
        for row, own in enumerate(self.pages):
            table[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
        output = attend_spans(
            self.q,
            self.projected,
            config,
            kv,
            table.to(GPU),
            torch.from_numpy(self.lengths).to(GPU),
            torch.from_numpy(self.counts).to(GPU) if self.tokens > 1 else None,
            torch.tensor([count], dtype=torch.int32, device=GPU),
            made,
        )
        return output.view(count, self.tokens, -1)


def pages_of(kind: str, rows: int) -> list[list[int]]:
    """Return page ids: rows share none, all share the first, or families share more."""
    order = np.random.default_rng(3).permutation(2500).tolist()
    found = []
    for row in range(rows):
        own = order[200 + row * OWN : 200 + (row + 1) * OWN]
        shares = kind in ("all", "families") or (kind == "half" and row % 2)
        inner = order[20 + row % 7 * 5 : 25 + row % 7 * 5] if kind == "families" else []
        found.append([*(order[:COMMON] if shares else []), *inner, *own])
    return found


@pytest.fixture(params=["numbers", "fp8-rows"])
def kv(request: pytest.FixtureRequest) -> Iterator[Tensor]:
    config, pages = nine_billion(), 2500
    torch.manual_seed(1)
    if request.param == "numbers":
        shape = (pages, config.kv_heads, 2, 64, config.head_dim)
        yield torch.randn(shape, device=GPU, dtype=torch.bfloat16)
        return
    size = (pages, config.kv_heads, 128 * (config.head_dim + 1))
    yield torch.randint(0, 126, size, device=GPU, dtype=torch.uint8)


@pytest.mark.parametrize("tokens", [1, 2, 4], ids=["step", "draft", "drafts"])
@pytest.mark.parametrize(
    ("kind", "count"),
    [("none", 3), ("all", 2), ("all", 32), ("half", 48), ("families", 100), ("all", 128)],
)
def test_a_row_has_the_same_bits_among_any_others(
    kv: Tensor, kind: str, count: int, tokens: int
) -> None:
    rows = Rows.of(pages_of(kind, count), tokens)
    together = rows.attend(kv, grouped=True)
    assert together.isfinite().all()
    assert torch.equal(together, rows.attend(kv, grouped=False))
    for row in {0, 1, count // 2, count - 1}:
        assert torch.equal(together[row : row + 1], rows.take([row]).attend(kv, grouped=True))
    some = np.random.default_rng(count).permutation(count)[: max(count // 3, 2)].tolist()
    assert torch.equal(together[some], rows.take(some).attend(kv, grouped=True))


def test_prompts_of_one_beginning_are_answered_as_each_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"dtype": "float32", "device": "cuda", "arena_mib": 512, "max_batch": 8}
    split = {"speculate": "off", "attention_split": "spans"}
    config = EngineConfig("dense", **settings, **split)  # type: ignore[arg-type]
    parts = parts_of("dense", EngineConfig("", **settings))  # type: ignore[arg-type]
    units = []
    plain = GroupPlan.of

    def counted(*inputs: object) -> GroupPlan:
        plan = plain(*inputs)  # type: ignore[arg-type]
        units.append(len(plan.units))
        return plan

    monkeypatch.setattr(GroupPlan, "of", counted)
    random = np.random.default_rng(5)
    common = random.integers(0, VOCAB, 1_700).tolist()
    prompts = [[*common, *random.integers(0, VOCAB, 7 * row + 1).tolist()] for row in range(6)]
    together, alone = Lone(config, parts=parts), {}
    # It leaves the pages that the others share.
    together.post(submit("first", common, 1))
    together.run()
    for row, prompt in enumerate(prompts):
        together.post(submit(f"alone{row}", prompt, 12))
        together.run()
        alone[row] = together.tokens(f"alone{row}")
    assert not any(units)
    for row, prompt in enumerate(prompts):
        together.post(submit(f"grouped{row}", prompt, 12))
    together.run()
    assert any(units)
    assert {row: together.tokens(f"grouped{row}") for row in alone} == alone
