"""Which heads a rank has: the one rule that weights, arenas and hand-overs between nodes cut by.

Pure.
"""


def share(pieces: int, ranks: int, rank: int) -> range:
    """Of so many pieces, in order, those of a rank: equal runs of neighbours; where there are more
    ranks than pieces, one piece, which neighbouring ranks have alike. Raises ValueError unless one
    of the two numbers divides the other."""
    if pieces % ranks == 0:
        each = pieces // ranks
        return range(rank * each, (rank + 1) * each)
    if ranks % pieces:
        raise ValueError(f"{pieces} pieces cannot be shared out evenly among {ranks} ranks")
    first = rank * pieces // ranks
    return range(first, first + 1)
