"""`python -m tasuki.bench.gateway TRACE`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
