"""Command-line flags from frozen config dataclasses: one field, one flag.

A field `drain_timeout: float` with metadata {"help": ..., "choices": ...} is `--drain-timeout`.
Types: str, int, float, bool (a switch), and each of these `| None` or `| Auto`. "aliases" are other
spellings. With an "argument" the value can be given without its flag. A field without default is
required. The end of a field's name gives the unit in --help, such as `_mib`. A config's HEADINGS
group its flags in --help. If configs name the most used fields (MOST_ASKED), --help lists only
these, and --help-all lists all. Pure except for `exit` and the config file.
"""

import argparse
import difflib
import json
import re
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from typing import (
    Any,
    NoReturn,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from .options import Auto, ConfigFileError, Headings, MostAsked, file_flags

DESCRIBE = "--describe-flags"

_OTHER_FLAGS = "Other"
_UNITS = {
    "mib": "MIB",
    "ms": "MS",
    "seconds": "SECONDS",
    "timeout": "SECONDS",
    "tokens": "TOKENS",
    "bind": "HOST:PORT",
    "target": "HOST:PORT",
    "file": "FILE",
    "config": "FILE",
    "ca": "FILE",
    "cert": "FILE",
    "endpoint": "URL",
    "etcd": "URL",
    "http": "HOST:PORT",
    "host": "HOST",
    "port": "PORT",
    "prefill": "HOST:PORT,...",
    "nodes": "HOST:PORT,...",
    "peers": "HOST:PORT,...",
    "advertise": "HOST:PORT",
    "hosts": "NAME,...",
    "origins": "ORIGIN,...",
    "out": "FILE",
    "model": "DIR",
    "key": "KEY",
    "name": "NAME",
    "prefix": "KEY",
    "utilization": "PART",
    "ids": "FILE",
    "credentials": "FILE",
    "minute": "N",
    "revision": "NAME",
    "gpu": "NAME|MIB",
    "prediction": "FILE",
    "gib": "GIB",
    "gb": "GIB",
    "grace": "SECONDS",
    "wait": "SECONDS",
    "window": "SECONDS",
    "ahead": "SECONDS",
    "delay": "SECONDS",
}
"""Placeholders of values in --help, by the last word of the setting's name."""
_AMOUNTS = {"MIB", "MS", "SECONDS", "TOKENS", "PORT", "PART", "N", "GIB"}
"""Placeholders in --help of numeric values."""
_KINDS = {int: "N", float: "NUMBER", str: "TEXT"}
_IN_WORDS = {int: "a whole number", float: "a number"}
_HELP_WIDTH = 100
_FLAGS_WIDTH = 32

First = TypeVar("First")
Second = TypeVar("Second")
Third = TypeVar("Third")
Fourth = TypeVar("Fourth")
Fifth = TypeVar("Fifth")


class _HelpFormatter(argparse.HelpFormatter):
    """Formatter of the --help text. It shows defaults, if any, and the first spelling of a flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=_FLAGS_WIDTH, width=_HELP_WIDTH)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.dest == "help":
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else " " + self._format_args(action, action.dest.upper())
        return action.option_strings[0] + value

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        is_told = not (default is None or default is False or default in ("", argparse.SUPPRESS))
        return text + " (default: %(default)s)" if is_told else text


class FlagParser(argparse.ArgumentParser):
    """Parser of command-line flags. Each error is one line with the flag's name, and exits with
    status 2."""

    def __init__(self, program: str, description: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self._most_asked: dict[str, str] = {}
        self.add_argument(DESCRIBE, action=_Describe, nargs=0, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {_in_our_words(message)}", file=sys.stderr)
        sys.exit(2)

    def format_help(self) -> str:
        """Return the --help text: one line for each of the configs' MOST_ASKED flags. If there are
        none, return all flags."""
        if not self._most_asked:
            return super().format_help()
        kept = [(action, action.help, action.metavar) for action in self._actions]
        shown = {"help", "help_all", "config"}
        left_out = 0
        try:
            for action in self._actions:
                if action.dest in self._most_asked and action.option_strings:
                    action.help = self._most_asked[action.dest]
                    action.metavar = "KIND" if action.choices else action.metavar
                elif action.option_strings and action.dest not in shown:
                    left_out += action.help is not argparse.SUPPRESS
                    action.help = argparse.SUPPRESS
            self.epilog = f"{left_out} more, and more of these: {self.prog} --help-all"
            return super().format_help()
        finally:
            self.epilog = None
            for action, text, value in kept:
                action.help, action.metavar = text, value

    def format_whole_help(self) -> str:
        return super().format_help()

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = " or ".join(str(choice) or "nothing" for choice in action.choices)
            raise argparse.ArgumentError(action, f"must be {known}, not {value!r}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(_unknown_flag(unknown[0], sorted(self._option_string_actions)))
        return known, unknown

    def add_config(self, config: type[Any]) -> None:
        """Add a flag for each field of a config dataclass."""
        hints = get_type_hints(config)
        headings: Headings = getattr(config, "HEADINGS", {})
        under = {name: heading for heading, names in headings.items() for name in names}
        most_asked: MostAsked = getattr(config, "MOST_ASKED", {})
        if most_asked and not self._most_asked:
            self.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show every option and exit"
            )
        self._most_asked.update(most_asked)
        for item in fields(config):
            place = under.get(item.name, _OTHER_FLAGS) if headings else None
            self._add_field(item, hints[item.name], self._under(place))

    def _under(self, heading: str | None) -> argparse._ActionsContainer:
        """Return the part of --help for the flags under `heading`; None: the general list."""
        if heading is None:
            return self
        for group in self._action_groups:
            if group.title == heading:
                return group
        return self.add_argument_group(heading)

    def build(self, config: type[First], values: argparse.Namespace) -> First:
        """Return a config dataclass with the parsed values. A ValueError of the dataclass becomes a
        flag error."""
        names = [item.name for item in fields(config)]  # type: ignore[arg-type]
        try:
            return config(**{name: getattr(values, name) for name in names})
        except ValueError as error:
            self.error(str(error))

    def _add_field(self, item: "Field[Any]", hint: Any, place: argparse._ActionsContainer) -> None:
        flag = "--" + item.name.replace("_", "-")
        flags = (flag, *item.metadata.get("aliases", ()))
        default = item.default
        text = item.metadata.get("help", "").replace("%", "%%") or " "
        kind = _plain_type(hint)
        read = _or_auto(kind) if Auto in get_args(hint) else _read_as(kind)
        if kind is bool:
            place.add_argument(*flags, action="store_true", dest=item.name, help=text)
            return
        argument = item.metadata.get("argument")
        if argument is not None:
            self.add_argument(
                item.name,
                nargs="?",
                default=argparse.SUPPRESS,
                metavar=argument,
                help=f"as {flag}",
            )
        place.add_argument(
            *flags,
            dest=item.name,
            type=read,
            metavar=item.metadata.get("unit") or _unit(item.name, kind)
            if "choices" not in item.metadata
            else None,
            choices=item.metadata.get("choices"),
            required=default is MISSING,
            default=None if default is MISSING else default,
            help=text,
        )


class FlagError(ValueError):
    """A flag cannot be used. The message names the flag and the fix."""


class RaisingFlagParser(FlagParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(_in_our_words(message))


@overload
def parse_configs(
    program: str,
    description: str,
    argv: Sequence[str],
    first: type[First],
    second: type[Second],
    /,
) -> tuple[First, Second]: ...


@overload
def parse_configs(
    program: str,
    description: str,
    argv: Sequence[str],
    first: type[First],
    second: type[Second],
    third: type[Third],
    /,
) -> tuple[First, Second, Third]: ...


@overload
def parse_configs(
    program: str,
    description: str,
    argv: Sequence[str],
    first: type[First],
    second: type[Second],
    third: type[Third],
    fourth: type[Fourth],
    /,
) -> tuple[First, Second, Third, Fourth]: ...


@overload
def parse_configs(
    program: str,
    description: str,
    argv: Sequence[str],
    first: type[First],
    second: type[Second],
    third: type[Third],
    fourth: type[Fourth],
    fifth: type[Fifth],
    /,
) -> tuple[First, Second, Third, Fourth, Fifth]: ...


def parse_configs(
    program: str, description: str, argv: Sequence[str], /, *configs: type[Any]
) -> tuple[Any, ...]:
    """Return several configs, read from one command line and the TOML file of --config. The command
    line wins. Exits with status 2 and one line on a bad flag, with 0 on --help."""
    return _read(FlagParser(program, description), argv, configs)


def read_configs(argv: Sequence[str], /, *configs: type[Any]) -> tuple[Any, ...]:
    """Return configs, read as by parse_configs(), for a running daemon. A bad flag raises FlagError
    with the error's one line."""
    return _read(RaisingFlagParser("", ""), argv, configs)


def _read(parser: FlagParser, argv: Sequence[str], configs: Sequence[type[Any]]) -> tuple[Any, ...]:
    parser.usage = "%(prog)s [MODEL] [FLAGS]"
    parser.add_argument("--config", metavar="FILE", default="", help="TOML file of these settings")
    for config in configs:
        parser.add_config(config)
    values = parser.parse_args(argv)
    if values.config:
        names = [item.name for config in configs for item in fields(config)]
        try:
            values = parser.parse_args([*file_flags(values.config, names), *argv])
        except ConfigFileError as error:
            parser.error(str(error))
    return tuple(parser.build(config, values) for config in configs)


def parse_config(program: str, description: str, argv: Sequence[str], config: type[First]) -> First:
    """Return one config from a command line alone, without --config; exits as parse_configs()."""
    parser = FlagParser(program, description)
    parser.add_config(config)
    return parser.build(config, parser.parse_args(argv))


class _HelpAll(argparse.Action):
    """Action of --help-all: print the help with all flags and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        assert isinstance(parser, FlagParser)
        print(parser.format_whole_help(), end="")
        parser.exit()


class _Describe(argparse.Action):
    """Action of a hidden flag: print the flags as JSON and exit. Completion and the reference use
    this JSON."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        flags = [
            {
                "flags": list(action.option_strings),
                "value": None if action.nargs == 0 else action.metavar or "VALUE",
                "choices": list(action.choices or ()),
                "default": action.default,
                "help": (action.help or "").replace("%%", "%").strip(),
            }
            for action in parser._actions
            if action.option_strings and action.help is not argparse.SUPPRESS
        ]
        print(json.dumps({"about": parser.description, "flags": flags}))
        parser.exit()


def _plain_type(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [part for part in get_args(hint) if part not in (type(None), Auto)]
    if hint not in (str, int, float, bool):
        raise TypeError(f"no flag can hold {hint}: use str, int, float or bool")
    return hint


def _unit(name: str, kind: type[Any]) -> str:
    unit = _UNITS.get(name.rpartition("_")[2])
    fits = unit is not None and (kind is str) != (unit in _AMOUNTS)
    return unit if unit is not None and fits else _KINDS[kind]


ReadFlag: TypeAlias = Callable[[str], Any]
"""A function to read a flag's value from its text. Raises ArgumentTypeError."""


def _read_as(kind: type[Any]) -> ReadFlag:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be {_IN_WORDS[kind]}, not {text!r}") from error

    return read


def _or_auto(kind: type[Any]) -> ReadFlag:
    def read(text: str) -> Any:
        if text == Auto.AUTO.value:
            return Auto.AUTO
        try:
            return kind(text)
        except ValueError as error:
            words = f"must be auto or {_IN_WORDS[kind]}, not {text!r}"
            raise argparse.ArgumentTypeError(words) from error

    return read


def _in_our_words(message: str) -> str:
    """Return an argparse error in tasuki's words. argparse writes "argument --port/--other:
    expected one argument"."""
    named = re.match(r"argument ([^:/]+)(?:/[^:]*)?: (.*)", message, re.DOTALL)
    if named is not None:
        fault = named[2].replace("expected one argument", "needs a value")
        return f"{named[1]} {fault}"
    missing = message.removeprefix("the following arguments are required: ")
    return message if missing == message else f"{missing} is missing: --help shows its place"


def _unknown_flag(flag: str, known: Sequence[str]) -> str:
    if not flag.startswith("-"):
        return f"unexpected argument {flag}: flags begin with --"
    name = flag.split("=")[0]
    begun = [flag for flag in known if flag.startswith(name)]
    close = begun or difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "known are " + " ".join(known)
    return f"unknown flag {name}: {hint}"
