"""`python -m scripts.tune_kernel`: finds a kernel's launch constants by measurement, for
maintainers.

    python -m scripts.tune_kernel --module tasuki.model.ops.attention.verify         --constants
    "_STAGES=2,3,4,5 _FEWEST_WARPS=4,8" --family attention --cases drafts

Every combination of the values runs the cases of `tasuki bench kernels` with the text of `--cases`
in their names, in a graph and on uncached memory. The results are compared with those of the
current constants: `same` if every bit is equal, else the largest difference. Needs a GPU. Writes
nothing.
"""

import ast
import importlib
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from scripts.common.command import head, show
from scripts.common.command import row as table_row
from tasuki.bench.cases.case import Case, Stage
from tasuki.bench.kernels import FAMILIES
from tasuki.bench.measure.timing import turn_seconds
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

Constants = Mapping[str, object]


@dataclass(frozen=True)
class Settings:
    module: str = option("", "whose constants are set")
    constants: str = option("", 'their values: "_STAGES=2,3,4 _WARPS=4,8"')
    family: str = option("", "of `tasuki bench kernels`")
    cases: str = option("", "a part of their names")
    slabs: int = option(1100, "of the arena that the kernels work in, about 50 MB each")

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise ValueError(f"family: {self.family!r} is unknown: use {', '.join(FAMILIES)}")
        try:
            importlib.import_module(self.module)
        except ImportError as error:
            raise ValueError(f"module: {error}") from error


@dataclass(frozen=True)
class Tried:
    """The results of one combination of constants. seconds: time of each case's turn. returned:
    result tensors of each case's turn."""

    seconds: tuple[float, ...]
    returned: tuple[tuple[Tensor, ...], ...]


def combinations(text: str) -> list[Constants]:
    """Return the combinations of constants listed in `--constants`. Values are Python literals
    without spaces."""
    named = [one.partition("=")[::2] for one in text.split()]
    values = [
        [(name, value) for value in ast.literal_eval(f"[{listed}]")] for name, listed in named
    ]
    return [dict(chosen) for chosen in itertools.product(*values)]


@contextmanager
def standing(module: ModuleType, constants: Constants) -> Iterator[None]:
    """Set the module's constants while the block runs. Raises AttributeError for an unknown
    constant."""
    before = {name: getattr(module, name) for name in constants}
    vars(module).update(constants)
    try:
        yield
    finally:
        vars(module).update(before)


def tried(cases: Sequence[Case], device: torch.device) -> Tried:
    # Copied at once: a turn's result may be in memory written by the next one.
    returned = tuple(
        tuple(tensor.clone() for tensor in _tensors(case.turns[0]())) for case in cases
    )
    return Tried(tuple(turn_seconds(case.turns, device) for case in cases), returned)


def row(name: str, found: Tried, first: Tried) -> str:
    cells = [
        f"{seconds * 1e6:.1f} us ({seconds / before:.2f}), {_difference(returned, expected)}"
        for seconds, before, returned, expected in zip(
            found.seconds, first.seconds, found.returned, first.returned, strict=True
        )
    ]
    return table_row(name, *cells)


def _difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> str:
    if all(map(torch.equal, found, expected)):
        return "same"
    pairs = zip(found, expected, strict=True)
    return f"apart by {max(float((a.float() - b.float()).abs().max()) for a, b in pairs):.2g}"


def _tensors(returned: object) -> Iterator[Tensor]:
    if isinstance(returned, Tensor):
        yield returned
    elif isinstance(returned, Sequence):
        for part in returned:
            yield from _tensors(part)


def main(argv: Sequence[str]) -> int:
    settings = parse_config("python -m scripts.tune_kernel", "Tune one.", argv, Settings)
    if not torch.cuda.is_available():
        raise SystemExit("scripts.tune_kernel: no GPU is here, and Triton runs on nothing else")
    module, device = importlib.import_module(settings.module), torch.device("cuda")
    family = importlib.import_module(f"tasuki.bench.cases.{settings.family}")
    cases = [
        case for case in family.cases(Stage(device, settings.slabs)) if settings.cases in case.name
    ]
    if not cases:
        raise SystemExit(f"scripts.tune_kernel: no case of {settings.family} has that name")
    first = tried(cases, device)
    show(head(settings.module, *(case.name for case in cases)))
    show(row("as it stands", first, first))
    for constants in combinations(settings.constants):
        name = " ".join(f"{name}={value}" for name, value in constants.items())
        try:
            with standing(module, constants):
                show(row(name, tried(cases, device), first))
        except Exception as error:
            # A failure is a result too, such as a combination too large for this GPU.
            show(table_row(name, f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
