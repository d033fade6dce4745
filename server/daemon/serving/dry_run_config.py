"""The settings of `tasuki serve --dry-run`."""

from dataclasses import dataclass
from typing import ClassVar

from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.utils.config.options import Headings, option

# What the driver reports as total, MiB.
GPUS = {"h100": 81559, "h200": 143771, "b200": 183359}


@dataclass(frozen=True)
class DryRunConfig:
    HEADINGS: ClassVar[Headings] = {"Memory and batches": ("dry_run", "gpu", "quantization")}

    dry_run: bool = option(False, "print the memory plan and exit; --model may be a published name")
    gpu: str = option(
        "",
        f"of the plan: {', '.join(GPUS)}, or MiB; by default what is free of this machine's, and "
        "without one a plan of each of these",
    )
    quantization: str = option(
        "",
        "of the plan, where --model is a published name: how its weights are stored; not given: in "
        "dtype. A folder says so itself",
        ("", *SERVED_ON_GPUS),
    )

    def __post_init__(self) -> None:
        if self.quantization and not self.dry_run:
            raise ValueError(
                f"quantization is {self.quantization}, which is a plan's alone: a checkpoint that "
                "is served says itself how it is stored; make one with tasuki quantise, or give "
                "--dry-run"
            )
