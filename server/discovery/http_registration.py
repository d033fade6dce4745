"""Where a node's HTTP server is registered in etcd, for who watches nodes."""

from .etcd import Etcd
from .registration import Registration

HTTP_PREFIX = "/tasuki/http/"
"""The key is this and the address: names of nodes need not differ."""


def http_registration(endpoint: str, address: str) -> Registration:
    """address: HOST:PORT under which others reach the server. REQUIRES: a running event loop."""
    return Registration(Etcd(endpoint), HTTP_PREFIX + address, address)
