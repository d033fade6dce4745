"""The fields of bodies that this node reads: their names, and the JSON Schema of each.

A body's table says which fields are known, and is a part of /openapi.json (server/openapi).
tests/server/test_declared_fields.py sends each field through its reader and compares.
"""
