"""`tasuki bench kernels`: the time of every kernel alone, beside its least memory traffic or
FLOPs."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasuki.bench.cases.case import Stage, measure
from tasuki.bench.measure.report import reported
from tasuki.bench.measure.results import OUT
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

from .errors import BenchError

FAMILIES = (
    "gdn",
    "gdn_drafts",
    "attention",
    "shared_prefix",
    "products",
    "elementwise",
    "slots",
    "digest",
    "sampling",
    "experts",
    "coded_experts",
    "tiles",
    "fp8_rows",
    "gdn_prefill",
)


@dataclass(frozen=True)
class KernelsConfig:
    families: str = option(",".join(FAMILIES), "which kernels, by commas")
    slabs: int = option(1100, "of the arena that the kernels work in, about 50 MB each")
    out: str = option("", OUT)
    commit: str = option("", "of the source, where it is no git tree")

    def __post_init__(self) -> None:
        for family in self.families.split(","):
            if family not in FAMILIES:
                raise ValueError(f"families: {family} is unknown: use {', '.join(FAMILIES)}")


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki bench kernels", "Time every kernel.", argv, KernelsConfig)
    if not torch.cuda.is_available():
        raise BenchError("no GPU is here, and Triton kernels run on nothing else")
    device = torch.device("cuda")
    report = reported("kernels", device, torch.bfloat16, config.commit, config.out)
    stage = Stage(device, config.slabs)
    for family in config.families.split(","):
        module = importlib.import_module(f".cases.{family}", __package__)
        for case in module.cases(stage):
            report.add(measure(case, stage, report.floors))
            torch.cuda.empty_cache()
    return 0
