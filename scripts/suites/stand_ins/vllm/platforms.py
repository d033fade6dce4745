"""A stand-in for vLLM's platforms: its tests see a CPU and nothing else."""

from collections.abc import Callable
from typing import Any


class _Cpu:
    device_type = "cpu"

    def is_cpu(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Callable[..., bool]:
        if name.startswith("__"):
            raise AttributeError(name)

        def no(*_given: Any, **_named: Any) -> bool:
            return False

        return no


current_platform = _Cpu()
