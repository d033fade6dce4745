"""A replacement for imports of vLLM in a test suite: helpers needed by tests are here, and other
names are stand-ins.

A test using any other class or function of vLLM fails with InternalOfVllm and its name. Such tests
exercise vLLM's own code, absent from other servers.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__version__ = "0.33.0"


class InternalOfVllm(Exception):
    """A test used an internal class or function of vLLM."""


class Uses:
    """A record of the vLLM names a test uses. running: names used by the running test; None while
    files are read, and nothing raises then."""

    def __init__(self) -> None:
        self.running: list[str] | None = None

    def note(self, name: str) -> None:
        """Raise InternalOfVllm for the used name inside a test; do nothing while files are read."""
        if self.running is not None:
            self.running.append(name)
            raise InternalOfVllm(f"the test uses vLLM's own {name}")


uses = Uses()


class _Named(type):
    """The metaclass of stand-ins. A stand-in serves as a base class, an exception, a decorator or a
    value."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        uses.note(cls.__qualname__)
        if len(given) == 1 and not named and callable(given[0]):
            return given[0]
        return super().__call__()

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        uses.note(f"{cls.__qualname__}.{name}")
        return stand_in(f"{cls.__qualname__}.{name}")

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        uses.note(cls.__qualname__)
        return iter(())

    def __add__(cls, other: Any) -> Any:
        uses.note(cls.__qualname__)
        return other

    __radd__ = __sub__ = __add__


def stand_in(name: str) -> Any:
    """Return a class named `name`. Its use raises InternalOfVllm."""
    return _Named(
        name.rpartition(".")[2], (Exception,), {"__qualname__": name, "__getattr__": _asked}
    )


def _asked(made: object, name: str) -> Any:
    """Record the use of an attribute of a stand-in created while files were read."""
    if not name.startswith("__"):
        uses.note(f"{type(made).__qualname__}.{name}")
    raise AttributeError(name)


class _StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder for every module of vLLM without a file in this folder."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("vllm."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run no code: the module creates its names on access."""


sys.meta_path.append(_Finder())


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return stand_in(f"vllm.{name}")
