"""The `tasuki` command: a table of subcommands, each a module with `main(argv) -> int`.

Commands are imported by name and only when run, so this file depends on none of them.
"""

import difflib
import importlib
import sys
import traceback
from collections.abc import Sequence

from tasuki.utils.program import COMMANDS, PACKAGE, is_expected, line_of, package_version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command named first in `argv`. Returns the exit status: 0 for success, 1 for a
    failure with one line on stderr, 2 for an unknown command or flag."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    command, *rest = arguments
    if command in ("version", "--version"):
        print(f"tasuki {package_version()}")
        return 0
    if command not in COMMANDS:
        print(f"tasuki: error: unknown command {command}: {_meant(command)}", file=sys.stderr)
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


def _meant(command: str) -> str:
    """Return a hint for an unknown command: the nearest known command, or the command for a list of
    all."""
    known = [*COMMANDS, "version"]
    begun = [name for name in known if command and name.startswith(command)]
    close = begun[:1] or difflib.get_close_matches(command, known, n=1)
    listed = "`tasuki --help` lists them"
    return f"did you mean {close[0]}? {listed}" if close else listed


def _help() -> str:
    rows = [f"  {name:<14}{text}" for name, (_, text) in COMMANDS.items()]
    rows.append(f"  {'version':<14}the installed version")
    return "\n".join(["usage: tasuki COMMAND [FLAGS] (COMMAND --help lists them)", "", *rows])


if __name__ == "__main__":
    sys.exit(main())
