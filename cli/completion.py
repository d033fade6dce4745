"""`tasuki completion SHELL`: a shell script for completing commands, flags and the values of
choices.

The script is built from each command's own description of its flags, so it is never out of date.
Usage: `source <(tasuki completion bash)`, or write the output to your shell's folder of
completions.
"""

import importlib
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

from tasuki.utils.flags import DESCRIBE, FlagParser
from tasuki.utils.program import COMMANDS, PACKAGE

SHELLS = ("bash", "zsh", "fish")


@dataclass(frozen=True)
class Command:
    """One command in the completion script. flags: description of each flag, as printed by
    FlagParser."""

    name: str
    about: str
    flags: tuple[dict[str, Any], ...]


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki completion", "A script that completes this command.")
    parser.add_argument("shell", choices=SHELLS, help="whose script")
    shell = parser.parse_args(argv).shell
    commands = [described(name) for name in COMMANDS if name != "completion"]
    print(_fish(commands) if shell == "fish" else _bash(commands, zsh=shell == "zsh"))
    return 0


def described(name: str) -> Command:
    """Return the command `name` with the description of its own flags, if any. Imports the
    command's module."""
    module = importlib.import_module(f"{PACKAGE}.{COMMANDS[name][0]}")
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()), suppress(SystemExit):
        module.main([DESCRIBE])
    try:
        flags = json.loads(printed.getvalue())["flags"]
    except (ValueError, KeyError):
        # A command with subcommands has no flags of its own.
        flags = []
    return Command(name, COMMANDS[name][1], tuple(flags))


def _bash(commands: Sequence[Command], *, zsh: bool) -> str:
    names = " ".join([*(command.name for command in commands), "completion", "version"])
    cases = "\n".join(_bash_case(command) for command in commands)
    head = "autoload -U +X bashcompinit && bashcompinit\n" if zsh else ""
    return f"""{head}_tasuki() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
  if [ "$COMP_CWORD" = 1 ]; then
    COMPREPLY=($(compgen -W "{names}" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
    completion) COMPREPLY=($(compgen -W "{" ".join(SHELLS)}" -- "$word")) ;;
  esac
}}
complete -o default -F _tasuki tasuki"""


def _bash_case(command: Command) -> str:
    flags = " ".join(name for flag in command.flags for name in flag["flags"])
    values = "".join(
        f"\n        {'|'.join(flag['flags'])}) COMPREPLY=($(compgen -W "
        f'"{" ".join(flag["choices"])}" -- "$word")); return ;;'
        for flag in command.flags
        if flag["choices"]
    )
    choices = f"\n      case $before in{values}\n      esac" if values else ""
    return f"""    {command.name}){choices}
      case $word in
        -*) COMPREPLY=($(compgen -W "{flags}" -- "$word")) ;;
      esac ;;"""


def _fish(commands: Sequence[Command]) -> str:
    lines = []
    for command in commands:
        lines.append(
            f"complete -c tasuki -n __fish_use_subcommand -f -a {command.name} "
            f"-d {_quoted(command.about)}"
        )
        for flag in command.flags:
            spelled = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag["flags"]
            )
            given = f" -x -a {_quoted(' '.join(flag['choices']))}" if flag["choices"] else ""
            wants = " -r" if flag["value"] and not flag["choices"] else ""
            lines.append(
                f"complete -c tasuki -n '__fish_seen_subcommand_from {command.name}' "
                f"{spelled}{given}{wants} -d {_quoted(flag['help'])}"
            )
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
