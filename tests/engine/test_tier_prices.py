"""Loading or recomputing, by the assumed rates of each device."""

import pytest

from tasuki.engine.tiers import tier as t
from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.costs import prefill_flops
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.qwen35 import published_or_folder

ON_CPU = [t.CPU_LINK, t.DISK_LINK, t.REMOTE_LINK]
ON_GPU = [t.GPU_LINK, t.GPU_DISK_LINK, t.GPU_REMOTE_LINK]


def price(model: DeltaNetConfig, link: t.Link) -> t.TierPrices:
    layout = model.cache_layout("bfloat16", "bfloat16", "float32")
    return t.TierPrices.of(layout, prefill_flops(model).linear, link)


@pytest.mark.parametrize("links", [ON_CPU, ON_GPU])
def test_all_tiers_of_a_node_are_priced_in_one_unit(links: list[t.Link]) -> None:
    """Equal units allow sums: a load of two tiers, or one after another, costs both."""
    model = published_or_folder("9b")
    assert len({price(model, link).seconds for link in links}) == 1
    # The further down, the dearer.
    prices = [price(model, link).load(100) for link in links]
    assert prices == sorted(set(prices))


@pytest.mark.parametrize("name", ["9b", "35b-a3b"])
def test_a_gpu_reads_a_session_from_its_disk_and_computes_a_page(name: str) -> None:
    found = price(published_or_folder(name), t.GPU_DISK_LINK)
    long = 50_000 // PAGE_TOKENS
    assert found.load(long) < long * PAGE_TOKENS
    assert found.load(1) > PAGE_TOKENS
