"""The keys under which etcd lists nodes' HTTP servers."""

HTTP_PREFIX = "/tasuki/http/"
"""The key is this and the address: names of nodes need not differ."""
