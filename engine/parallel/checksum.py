"""What a rank drew, as one number: ranks whose numbers differ compute different things."""

from zlib import crc32

import numpy as np

from tasuki.engine.runner.drawn_tokens import DrawnTokens


def checksum(drawn: DrawnTokens) -> int:
    """Of all tokens and drafts of a forward."""
    behind = {row: [token.token for token in found] for row, found in drawn.behind.items()}
    total = crc32(drawn.tokens.astype("<i4", copy=False).tobytes())
    for kind, lists in enumerate((behind, drawn.guessed)):
        for row in sorted(lists):
            numbers = [kind, row, len(lists[row]), *lists[row]]
            total = crc32(np.array(numbers, dtype="<i4").tobytes(), total)
    return total
