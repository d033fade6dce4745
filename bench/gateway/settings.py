"""What a run is asked for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class GatewaySettings:
    """processes: that the simulated nodes share. gb: of each node's cache, GiB. streams: times the
    trace is played. factor: by which its lengths are divided, where a token then stands for so
    many. seconds: of the trace; turns of its first warm_up are not counted. restart: seconds after
    which the gateway is killed and started again; 0: it is not. itl_ms: of an answer's token, as
    the trace has them. tflops, fixed_ms: of a prefill; tflops None: as measured. defaults: of the
    gateway, also where they send hits elsewhere."""

    model: str
    nodes: int
    processes: int
    gb: float
    streams: int
    factor: int
    seconds: float
    warm_up: float
    restart: float
    seed: int
    itl_ms: float
    tflops: float | None
    fixed_ms: float
    defaults: bool

    @property
    def token_seconds(self) -> float:
        """Of a token of the shortened trace."""
        return self.itl_ms * 1e-3 * self.factor
