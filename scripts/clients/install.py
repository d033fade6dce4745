"""`python -m scripts.clients.install CLIENT ...`: each into an environment of its own."""

import argparse

from scripts.clients.environments import PACKAGES, install


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="+", choices=sorted(PACKAGES))
    for client in parser.parse_args().clients:
        print(f"clients: {client} is in {install(client).parent.parent}", flush=True)


if __name__ == "__main__":
    main()
