"""What answers may be drafted from, by the names in the settings."""

from typing import Literal

SpeculateName = Literal["auto", "mtp", "tree", "mtp+tree", "prediction", "off"]
