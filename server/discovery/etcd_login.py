"""The user as whom a node asks etcd."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class EtcdLogin:
    name: str
    password: str = field(repr=False)
