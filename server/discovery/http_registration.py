"""Where a node's HTTP server is registered in etcd, for who watches nodes."""

from .etcd_access import EtcdAccess
from .registration import Registration

HTTP_PREFIX = "/tasuki/http/"
"""The key is this and the address: names of nodes need not differ."""


def http_registration(access: EtcdAccess, endpoint: str, address: str) -> Registration:
    """address: HOST:PORT under which others reach the server. REQUIRES: a running event loop.
    Raises EtcdAccessError."""
    return Registration(access.client(endpoint), HTTP_PREFIX + address, address)
