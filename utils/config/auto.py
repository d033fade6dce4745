"""A setting that the program works out at its start."""

from enum import StrEnum


class Auto(StrEnum):
    """Of a config's field `int | Auto`: as text "auto", on a command line and in a file."""

    AUTO = "auto"
