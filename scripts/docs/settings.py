"""The documentation page with every command's flags, from the commands' own descriptions."""

from tasuki.cli.completion import Command, described
from tasuki.utils.program import COMMANDS

_HEAD = """# Settings

Each flag is also a key of the TOML file that `--config FILE` names, with `_` for `-`: `arena_mib =
4096` is `--arena-mib 4096`. The command line has the last word. `tasuki completion SHELL` completes
all of this.
"""


def settings_page() -> str:
    commands = [described(name) for name in COMMANDS]
    return "\n".join([_HEAD, *(section(command) for command in commands if command.flags)])


def section(command: Command) -> str:
    lines = [
        f"## tasuki {command.name}",
        "",
        f"{command.about[0].upper()}{command.about[1:]}.",
        "",
        "| flag | default | meaning |",
        "| --- | --- | --- |",
    ]
    for flag in command.flags:
        if "--help" in flag["flags"]:
            continue
        names = ", ".join(f"`{name}`" for name in flag["flags"])
        given = f" ({', '.join(map(str, flag['choices']))})" if flag["choices"] else ""
        lines.append(f"| {names} | {_default(flag['default'])} | {_escaped(flag['help'])}{given} |")
    return "\n".join([*lines, ""])


def _default(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"`{value}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
