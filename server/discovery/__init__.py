"""Discovery of nodes by other nodes: fixed lists, files, and etcd."""
