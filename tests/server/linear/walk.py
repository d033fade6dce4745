"""The functions that take a caller's or a model's text, found in the sources, and their callers.

The module has no effect but reading the sources. Names are resolved inside the walked files alone.
A call through an object with no class shown in the source counts as a call of every method of that
name.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

ROOT = Path(__file__).parents[3]
WALKED = (
    "server/text",
    "server/openai",
    "server/responses",
    "server/anthropic",
    "server/grpc",
    "server/smg",
    "server/pictures",
    "model/grammar",
    "engine/apart/frames.py",
)
_TEXT = frozenset(
    {
        *("str", "bytes", "bytearray", "Any", "object", "Mapping", "dict"),
        # Types for a caller's or a model's text once it is parsed.
        *("RequestFields", "ChatMessage", "ToolCall", "OfferedTool", "AskedGrammar", "Grammar"),
        *("Piece", "AnswerItem", "Split"),
    }
)
_MESSAGES = "pb"
"""Name of the module of a protocol's parsed bodies in every file of a service."""

Place: TypeAlias = str
"""Place of a function: its file below the root, a colon, its qualified name in Python."""
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Found:
    """One function of the walked files. reads: true if a parameter may hold text."""

    place: Place
    line: int
    reads: bool

    @property
    def shown(self) -> str:
        """Return the file, the line and the name, in an editor's form."""
        file, _, name = self.place.partition(":")
        return f"{file}:{self.line} {name}"


def walked_files() -> list[Path]:
    paths = (ROOT / name for name in WALKED)
    found = (path.rglob("*.py") if path.is_dir() else [path] for path in paths)
    return sorted(path for some in found for path in some)


class Walk:
    """The functions of the sources and their callers. functions: by place. callers: possible
    callers by place, tables of functions included."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        """Walk the sources. sources: texts by file name below the root."""
        self._modules = {file: _Module(file, text) for file, text in sources.items()}
        self.functions = {
            found.place: found for module in self._modules.values() for found in module.functions
        }
        self._methods: dict[str, list[Place]] = defaultdict(list)
        for module in self._modules.values():
            for (_, name), place in module.methods.items():
                self._methods[name].append(place)
        self.callers: dict[Place, set[Place]] = defaultdict(set)
        for module in self._modules.values():
            for caller, node, owner in module.bodies:
                for called in self._called(module, node, owner):
                    if called != caller:
                        self.callers[called].add(caller)

    @staticmethod
    def of_sources() -> "Walk":
        return Walk({str(path.relative_to(ROOT)): path.read_text() for path in walked_files()})

    def uncovered(self, covered: frozenset[Place]) -> list[Found]:
        """Return the text-reading functions neither covered nor called by covered functions
        alone."""
        safe = self._only_from(covered)
        return [
            found
            for place, found in sorted(self.functions.items())
            if found.reads and place not in safe
        ]

    def _only_from(self, covered: frozenset[Place]) -> set[Place]:
        """Return the covered functions, and the functions called by these alone. Functions with
        another caller are removed step by step, so functions that call each other stay together."""
        safe = {place for place in self.functions if place in covered or self.callers[place]}
        safe |= {place for places in self.callers.values() for place in places}
        unsafe = {place for place in safe if place not in covered and not self.callers[place]}
        while unsafe:
            safe -= unsafe
            unsafe = {
                place for place in safe if place not in covered and not self.callers[place] <= safe
            }
        return safe

    def _called(self, module: "_Module", node: ast.AST, owner: str | None) -> Iterator[Place]:
        for part in _own_nodes(node):
            if isinstance(part, ast.Name):
                yield from self._named(module, part.id)
            elif isinstance(part, ast.Attribute):
                yield from self._attribute(module, part, owner)

    def _named(self, module: "_Module", name: str) -> Iterator[Place]:
        where = module.imported.get(name)
        if where is not None:
            file, name = where
            if file not in self._modules:
                return
            module = self._modules[file]
        yield from module.named(name)

    def _attribute(
        self, module: "_Module", part: ast.Attribute, owner: str | None
    ) -> Iterator[Place]:
        holder = part.value.id if isinstance(part.value, ast.Name) else None
        if holder == "self" and owner is not None and (owner, part.attr) in module.methods:
            yield module.methods[owner, part.attr]
            return
        where = module.imported.get(holder or "", (module.file, holder))
        of_class = self._modules.get(where[0])
        if of_class is not None and (where[1], part.attr) in of_class.methods:
            yield of_class.methods[where[1], part.attr]
            return
        yield from self._methods.get(part.attr, ())


class _Module:
    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.functions: list[Found] = []
        self.methods: dict[tuple[str | None, str], Place] = {}
        self.bodies: list[tuple[Place, ast.AST, str | None]] = []
        self.imported: dict[str, tuple[str, str]] = {}
        self._names: dict[str, list[Place]] = defaultdict(list)
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self._import(node)
        for node in tree.body:
            self._top(node)

    def named(self, name: str) -> list[Place]:
        return self._names.get(name, [])

    def _import(self, node: ast.ImportFrom) -> None:
        package = Path(self.file).parent.parts
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            parts = [*package[: len(package) - node.level + 1], *parts]
        elif parts[:1] == ["tasuki"]:
            parts = parts[1:]
        for alias in node.names:
            where = ("/".join(parts) + ".py", alias.name)
            self.imported[alias.asname or alias.name] = where

    def _top(self, node: ast.stmt) -> None:
        if isinstance(node, _Function):
            self._function(node, "", None)
        elif isinstance(node, ast.ClassDef):
            self._class(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    # A table of functions lies between its users and its functions.
                    place = f"{self.file}:{target.id}"
                    self._names[target.id].append(place)
                    self.bodies.append((place, node.value, None))

    def _class(self, node: ast.ClassDef) -> None:
        for item in node.body:
            if isinstance(item, _Function):
                place = self._function(item, f"{node.name}.", node.name)
                self.methods[node.name, item.name] = place
                if item.name in ("__init__", "__post_init__"):
                    self._names[node.name].append(place)

    def _function(self, node: _Function, prefix: str, owner: str | None) -> Place:
        place = f"{self.file}:{prefix}{node.name}"
        if not prefix:
            self._names[node.name].append(place)
        if not _is_declaration(node):
            self.functions.append(Found(place, node.lineno, _reads(node)))
        self.bodies.append((place, node, owner))
        for inner in _inner_functions(node):
            inside = self._function(inner, f"{prefix}{node.name}.<locals>.", owner)
            # The outer function defines it and is its only caller.
            self.bodies.append((place, ast.Name(inside), None))
            self._names[inside].append(inside)
        return place


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a body, without annotations and without inner functions."""
    if isinstance(node, _Function):
        waiting: list[ast.AST] = [*node.body, *node.decorator_list, *node.args.defaults]
    else:
        waiting = [node]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _Function):
            continue
        yield part
        if isinstance(part, ast.AnnAssign):
            waiting += [part.value] if part.value is not None else []
            continue
        waiting += ast.iter_child_nodes(part)


def _inner_functions(node: _Function) -> Iterator[_Function]:
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, _Function):
            yield part
        else:
            waiting += ast.iter_child_nodes(part)


def _is_declaration(node: _Function) -> bool:
    """Return true if the function is a protocol's declaration, without a body."""
    return all(
        isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) for item in node.body
    )


def _reads(node: _Function) -> bool:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    every += [item for item in (arguments.vararg, arguments.kwarg) if item is not None]
    return any(_holds_text(item.annotation) for item in every if item.annotation is not None)


def _holds_text(annotation: ast.AST) -> bool:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _holds_text(ast.parse(annotation.value, mode="eval").body)
    if isinstance(annotation, ast.Name):
        return annotation.id in _TEXT
    if isinstance(annotation, ast.Attribute):
        return isinstance(annotation.value, ast.Name) and annotation.value.id == _MESSAGES
    if isinstance(annotation, ast.Subscript) and _is_callable(annotation.value):
        # A function passed as an argument reads nothing before its call.
        return False
    return any(_holds_text(part) for part in ast.iter_child_nodes(annotation))


def _is_callable(holder: ast.expr) -> bool:
    return isinstance(holder, ast.Name) and holder.id in ("Callable", "Awaitable", "type")
