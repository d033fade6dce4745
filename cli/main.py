"""The `tasuki` command: a table of subcommands, each a module with `main(argv) -> int`.

Commands are imported by name and only when asked for, so that this file depends on none of them.
"""

import importlib
import sys
import traceback
from collections.abc import Sequence

from tasuki.utils.commands import COMMANDS, PACKAGE
from tasuki.utils.error_lines import is_expected, line_of
from tasuki.utils.version import package_version


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 done, 1 failed with one line on stderr, 2 not understood."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    command, *rest = arguments
    if command in ("version", "--version"):
        print(f"tasuki {package_version()}")
        return 0
    if command not in COMMANDS:
        known = ", ".join([*COMMANDS, "version"])
        print(f"tasuki: error: unknown command {command}: use one of {known}", file=sys.stderr)
        return 2
    module = importlib.import_module(f"{PACKAGE}.{COMMANDS[command][0]}")
    try:
        return int(module.main(rest))
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if not is_expected(error):
            traceback.print_exc()
        print(f"tasuki: error: {line_of(error)}", file=sys.stderr)
        return 1


def _help() -> str:
    rows = [f"  {name:<14}{text}" for name, (_, text) in COMMANDS.items()]
    rows.append(f"  {'version':<14}the installed version")
    return "\n".join(["usage: tasuki COMMAND [FLAGS] (COMMAND --help lists them)", "", *rows])


if __name__ == "__main__":
    sys.exit(main())
