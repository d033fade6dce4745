"""What `tasuki serve` alone has of settings, beside where it serves HTTP."""

from dataclasses import dataclass
from typing import ClassVar

from tasuki.transfer.peer_values import LONGEST_NAME, is_name
from tasuki.utils.config.options import Headings, MostAsked, option


@dataclass(frozen=True)
class ServeConfig:
    HEADINGS: ClassVar[Headings] = {"Addresses": ("name",)}
    MOST_ASKED: ClassVar[MostAsked] = {"name": "of this node, on pages and in the fleet"}

    name: str = option("serve", "how pages, metrics and the fleet show this node")

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise ValueError(f"name must be at most {LONGEST_NAME} printable characters")
