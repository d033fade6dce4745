"""What shapes a decode node beside its engine and its server."""

from dataclasses import dataclass
from pathlib import Path

from ..engine.config import option
from .membership import FileMembership, FixedMembership, Membership, check_target


@dataclass(frozen=True)
class DecodeConfig:
    name: str = option("decode", "how prefill nodes see this node")
    prefill: str = option("", "prefill nodes, HOST:PORT separated by commas; none: prefill here")
    prefill_file: str = option(
        "", "file with a prefill node's HOST:PORT a line; nodes come and go as it changes"
    )
    prefill_ca: str = option(
        "", "PEM file: prefill nodes must show a certificate signed by these; none: plain text"
    )

    def __post_init__(self) -> None:
        if self.prefill and self.prefill_file:
            raise ValueError("prefill and prefill_file exclude each other: give one of them")
        for target in self._targets:
            check_target(target, "prefill")

    @property
    def membership(self) -> Membership:
        if self.prefill_file:
            return FileMembership(Path(self.prefill_file))
        return FixedMembership(self._targets)

    @property
    def _targets(self) -> list[str]:
        return [target.strip() for target in self.prefill.split(",") if target.strip()]
