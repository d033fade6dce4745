"""`tasuki role prefill|decode`: changes a node's role, and waits until the node serves in it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from tasuki.cli.unreached import asking
from tasuki.client.channel import bearing, open_channel
from tasuki.client.errors import client_error
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.config.flags import FlagParser
from tasuki.utils.config.options import option
from tasuki.utils.tls import ClientTls

ROLES = {"prefill": pb.NODE_ROLE_PREFILL, "decode": pb.NODE_ROLE_DECODE}

_POLL_SECONDS = 0.1


class RoleNotTaken(RuntimeError):
    """The node accepted, and was not back in its new role in time."""


@dataclass(frozen=True)
class RoleConfig:
    target: str = option("127.0.0.1:50051", "HOST:PORT of the node")
    ca: str = option("", "PEM file of a CA: connect by TLS and check the node against it")
    api_key: str = option("", "the node's key, where it requires one")
    wait: float = option(120.0, "seconds for it to drain and come back")


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki role", "Make a prefill node decode, or the reverse.")
    parser.add_argument("role", choices=tuple(ROLES))
    parser.add_argument(
        "settings",
        nargs="*",
        default=(),
        metavar="NAME=VALUE",
        help="of the new role, as max_batch=8",
    )
    parser.add_config(RoleConfig)
    values = parser.parse_args(argv)
    config = parser.build(RoleConfig, values)
    settings: dict[str, str] = {}
    for given in values.settings:
        name, equals, value = given.partition("=")
        if not equals:
            parser.error(f"{given} is not NAME=VALUE")
        settings[name.replace("-", "_")] = value
    tls = ClientTls(config.ca) if config.ca else None
    with open_channel(config.target, tls) as plain:
        channel = bearing(plain, config.api_key) if config.api_key else plain
        with asking(config.target):
            change_role(channel, values.role, settings, config.wait)
    print(f"{config.target} is a {values.role} node")
    return 0


def change_role(
    channel: grpc.Channel, role: str, settings: Mapping[str, str], wait_seconds: float
) -> None:
    """Returns once the node serves in that role. Raises ClientError, RoleNotTaken."""
    admin = pb_grpc.CacheAdminStub(channel)  # type: ignore[no-untyped-call]
    try:
        admin.ChangeRole(pb.ChangeRoleRequest(role=ROLES[role], settings=settings), timeout=10)
    except grpc.RpcError as error:
        raise client_error(error) from error
    deadline = time.monotonic() + wait_seconds
    while time.monotonic() < deadline:
        try:
            if admin.Stats(pb.StatsRequest(), timeout=5).role == ROLES[role]:
                return
        except grpc.RpcError:
            # It drains, or is not back yet.
            pass
        time.sleep(_POLL_SECONDS)
    raise RoleNotTaken(f"the node is no {role} node after {wait_seconds:.0f} s: read its log")
