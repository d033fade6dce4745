"""How prefill nodes are dialled: over TLS, or in plain text where that leaves nothing to be read.

Prompts, salts and the key to this node's memory go over these channels, and whoever answers at the
other end is given them. Immutable, any thread. Invariant: in plain text nothing leaves this host,
unless whoever started the node has said that its network is private.
"""

from dataclasses import dataclass

import grpc

from tasuki.server.bind import is_loopback
from tasuki.server.discovery.membership import MembershipError
from tasuki.transfer.protocol.contract import Difference

_OPTIONS = (
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.max_send_message_length", 32 * 2**20),
    # A restarted peer must be found at once, not after another channel's backoff.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
# A proxy of the environment would read what was to stay on this host.
_DIRECT = ("grpc.enable_http_proxy", 0)
_FIELD = "prefill_ca"


@dataclass(frozen=True)
class Dialling:
    """credentials: None is plain text. private_network: plain text may leave this host."""

    credentials: grpc.ChannelCredentials | None = None
    private_network: bool = False

    def refusal(self, target: str) -> Difference | None:
        """Why the target, HOST:PORT, is not dialled; None where it is. Names count as loopback by
        their text, `localhost` alone: what they resolve to may change."""
        if self.credentials is not None or self.private_network or _on_this_host(target):
            return None
        return Difference(
            _FIELD,
            ours="not given, so that prompts would leave this host in plain text: give "
            "--prefill-ca, or pass --insecure on a private network",
            theirs=f"{target} is not on loopback",
        )

    def check(self, target: str) -> None:
        """Raises MembershipError where the target is not dialled."""
        refusal = self.refusal(target)
        if refusal is not None:
            raise MembershipError(f"prefill {refusal.theirs}, {refusal.field} is {refusal.ours}")

    def channel(self, target: str) -> grpc.aio.Channel:
        """REQUIRES: the target is not refused."""
        if self.credentials is None:
            return grpc.aio.insecure_channel(target, options=(*_OPTIONS, _DIRECT))
        return grpc.aio.secure_channel(target, self.credentials, options=_OPTIONS)


def _on_this_host(target: str) -> bool:
    host = target.rpartition(":")[0]
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return is_loopback(host)
