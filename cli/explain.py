"""`tasuki explain REQUEST`: the run of one request, on one screen.

Shows the prompt's match in the cache and the resumed state. Shows the lost cached tokens, with the
request causing their eviction. Shows the evictions made for this request, its transfer's timeline,
and its seconds by state. Prints the node's report and computes nothing.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasuki.utils.flags import FlagParser
from tasuki.utils.tls import ClientTls

from .node_target import NodeTarget

if TYPE_CHECKING:
    from tasuki.client.session import Client
    from tasuki.proto import inference_pb2 as pb

_ANSWERS = ("chatcmpl", "cmpl")
"""Prefixes of answer ids over HTTP. The request's own id follows them."""


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki explain", "One request's story.")
    parser.add_argument("request", help="its id: the header tasuki-request-id, or `id` over HTTP")
    parser.add_config(NodeTarget)
    values = parser.parse_args(argv)
    config = parser.build(NodeTarget, values)
    from tasuki.client.session import Client

    from .node_target import asking
    from .request_story import story

    target, tls = config.grpc_address(), ClientTls(config.ca) if config.ca else None
    with asking(target), Client(target, tls=tls, api_key=config.api_key) as client:
        print("\n".join(story(_explained(client, values.request))))
    return 0


def _explained(client: "Client", request: str) -> "pb.ExplainResponse":
    """Return the report of the request with the given id. If there is none, take the id as an
    answer's id, and look for the request's id in it."""
    from tasuki.client.errors import ClientError

    try:
        return client.explain(request)
    except ClientError as error:
        kind, _, inner = request.partition("-")
        if error.kind != "unknown_request" or kind not in _ANSWERS or not inner:
            raise
        return client.explain(inner)
