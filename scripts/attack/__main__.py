"""`python -m scripts.attack`: runs the attacks on a prefill and a decode node, 20 s each. It is
`python -m scripts.chaos attack`."""

import sys

from scripts.chaos.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["attack", *sys.argv[1:]]))
