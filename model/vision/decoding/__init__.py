"""Decoding of untrusted pictures: bytes to pixels in bounded processes without sockets or files."""
