"""Parts of a tensor, and the error of whatever cannot be read."""


class WeightsError(ValueError):
    """Weights that do not fit the config; the message names the tensor or file and the mend."""


class BlockCut(WeightsError):
    """A part would cut a block of quantised values, which share a scale. unit: elements of one."""

    def __init__(self, message: str, unit: int) -> None:
        super().__init__(message)
        self.unit = unit


Part = tuple[slice, ...]
"""Which elements of a tensor: a slice for each dimension from the first on, the rest whole."""
WHOLE: Part = ()


def bounds(part: Part, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(begin, end) of the part in every dimension."""
    whole = (*part, *(slice(None),) * (len(shape) - len(part)))
    return [piece.indices(size)[:2] for piece, size in zip(whole, shape, strict=True)]
