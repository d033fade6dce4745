"""How nodes find each other: lists, etcd."""
