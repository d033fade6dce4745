"""What shapes a decode node beside its engine and its server."""

from dataclasses import dataclass

from ..engine.config import option


@dataclass(frozen=True)
class DecodeConfig:
    name: str = option("decode", "how prefill nodes see this node")
    prefill: str = option("", "prefill nodes, HOST:PORT separated by commas; none: prefill here")

    prefill_ca: str = option(
        "", "PEM file: prefill nodes must show a certificate signed by these; none: plain text"
    )

    def __post_init__(self) -> None:
        for target in self.targets:
            host, separator, port = target.rpartition(":")
            if not separator or not host or not port.isdecimal() or not 0 < int(port) <= 65535:
                raise ValueError(
                    f"prefill: {target!r} is not HOST:PORT: write for example 127.0.0.1:50052"
                )

    @property
    def targets(self) -> list[str]:
        return [target.strip() for target in self.prefill.split(",") if target.strip()]
