"""Checks whether an endpoint answers as the APIs that it serves say, from outside: any server's."""
