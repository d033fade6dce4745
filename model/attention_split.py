"""The divisions of a step's keys among the programs of a GPU."""

from enum import Enum


class AttentionSplit(Enum):
    """The division of a step's keys among a GPU's programs.

    SHARES: even shares of the pages of all rows. SPANS: spans of each row's own keys, at fixed
    positions. Rows with common pages are then attended in groups, and a row's bits do not depend on
    other rows.
    """

    SHARES = "shares"
    SPANS = "spans"
