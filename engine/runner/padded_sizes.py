"""The batch sizes that decode graphs are captured for. Pure."""

_STRIDES = ((4, 2), (16, 4), (64, 8), (256, 16))
"""Up to so many rows, sizes stand so far apart; then by 64."""


def padded_sizes(largest: int) -> list[int]:
    """1, 2, 4, 8, 12, 16, 24, ...; the last is `largest`.

    A row too many costs its share of the matrix products and nothing else.
    """
    sizes = [1, 2]
    while sizes[-1] < largest:
        last = sizes[-1]
        sizes.append(last + next((stride for end, stride in _STRIDES if last < end), 64))
    return [size for size in sizes if size < largest] + [largest]
