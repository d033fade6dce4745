"""The measurements of `tasuki bench transfer`: layer chunks alone, transfers of an engine, whole
nodes."""
