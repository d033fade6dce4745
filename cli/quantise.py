"""`tasuki quantise`: conversion of a BF16 checkpoint to a published format."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasuki.model.quantise.format_names import FORMATS
from tasuki.utils.flags import parse_config
from tasuki.utils.logs import progress_bar
from tasuki.utils.options import option


@dataclass(frozen=True)
class QuantiseConfig:
    model: str = option("", "folder of a BF16 checkpoint")
    out: str = option("", "folder to make; it may not be there yet", unit="DIR")
    format: str = option(
        "fp8",
        "weight format: fp8 as Qwen's; fp8-channel, nvfp4-ct: compressed-tensors; "
        "fp8-tensor, nvfp4, mixed: ModelOpt",
        FORMATS,
    )

    def __post_init__(self) -> None:
        for name in ("model", "out"):
            if not getattr(self, name):
                raise ValueError(f"--{name} is missing: give a folder")


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki quantise", "Quantise a checkpoint.", argv, QuantiseConfig)
    # Imported after the check of the flags, because torch takes seconds.
    from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder

    target = Path(config.out)
    quantise_folder(Path(config.model), target, RECIPES[config.format], progress_bar("files"))
    print(f"{target}: {config.format} weights of {config.model}")
    return 0
