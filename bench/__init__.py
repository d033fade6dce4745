"""`tasuki bench`: measures the engine and the hardware floor in one run, and shows their distance.

bench/cache has scripts with environments of their own and is no part of this package.
"""
