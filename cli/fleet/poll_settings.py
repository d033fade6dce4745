"""How nodes are asked for their metrics: how often, for how long, and by which key."""

import ssl
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PollLimits:
    """every_seconds: from one answer to the next question. answer_seconds: for an answer, whole.
    at_a_time: questions in flight."""

    every_seconds: float = 5.0
    answer_seconds: float = 3.0
    answer_bytes: int = 4 << 20
    at_a_time: int = 64


@dataclass(frozen=True)
class Credentials:
    """key: borne to every node; empty for none. tls: nodes are asked by HTTPS and checked against
    it; None: by HTTP. insecure: the key may leave this host in plain text."""

    key: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    insecure: bool = False
