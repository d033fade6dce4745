"""`tasuki role prefill|decode`: changes a node's role, and waits until the node serves in it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasuki.utils.flags import FlagParser
from tasuki.utils.options import option
from tasuki.utils.tls import ClientTls

from .node_target import NodeTarget

if TYPE_CHECKING:
    import grpc

ROLES = ("prefill", "decode")

_POLL_SECONDS = 0.1


class RoleNotTaken(RuntimeError):
    """The node accepted the change of its role, but was not ready in the new role in time."""


@dataclass(frozen=True)
class RoleConfig(NodeTarget):
    wait: float = option(120.0, "seconds for it to drain and come back")


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki role", "Make a prefill node decode, or the reverse.")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument(
        "settings",
        nargs="*",
        metavar="NAME=VALUE",
        help="of the new role, as max_batch=8",
    )
    parser.add_config(RoleConfig)
    values = parser.parse_args(argv)
    config = parser.build(RoleConfig, values)
    settings: dict[str, str] = {}
    for given in values.settings or ():
        name, equals, value = given.partition("=")
        if not equals:
            parser.error(f"{given} is not NAME=VALUE")
        settings[name.replace("-", "_")] = value
    from tasuki.client.channel import bearing, open_channel

    from .node_target import asking

    target, tls = config.grpc_address(), ClientTls(config.ca) if config.ca else None
    with open_channel(target, tls) as plain:
        channel = bearing(plain, config.api_key) if config.api_key else plain
        with asking(target):
            change_role(channel, values.role, settings, config.wait)
    print(f"{target} is a {values.role} node")
    return 0


def change_role(
    channel: "grpc.Channel", role: str, settings: Mapping[str, str], wait_seconds: float
) -> None:
    """Change a node's role and return once the node serves in it. role: `prefill` or `decode`.
    settings: settings of the new role by name. wait_seconds: timeout. Raises ClientError, and
    RoleNotTaken after the timeout."""
    import grpc

    from tasuki.client.errors import client_error
    from tasuki.proto import inference_pb2 as pb
    from tasuki.proto import inference_pb2_grpc as pb_grpc

    wanted = pb.NODE_ROLE_PREFILL if role == "prefill" else pb.NODE_ROLE_DECODE
    admin = pb_grpc.CacheAdminStub(channel)  # type: ignore[no-untyped-call]
    try:
        admin.ChangeRole(pb.ChangeRoleRequest(role=wanted, settings=settings), timeout=10)
    except grpc.RpcError as error:
        raise client_error(error) from error
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        try:
            if admin.Stats(pb.StatsRequest(), timeout=5).role == wanted:
                return
        except grpc.RpcError:
            # The node drains, or is not back yet.
            pass
        time.sleep(_POLL_SECONDS)
    raise RoleNotTaken(f"the node is no {role} node after {wait_seconds:.0f} s: read its log")
