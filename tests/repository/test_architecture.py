"""Tests of imports: they point downward, between rooms and inside them; see docs/design.md,
"Folders".

A room is a top-level folder. Inside every folder, files and subfolders import each other without a
circle. Between two processes lies one package of messages.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEVEL = {
    "cli": 9,
    "bench": 8,
    "client": 7,
    "prefill_node": 7,
    "decode_node": 7,
    "server": 6,
    "dashboard": 5,
    "engine": 4,
    "model": 3,
    "transfer": 3,
    "routing": 3,
    "pycache": 2,
    "utils": 1,
    "proto": 0,
}
SCRIPTS = {ROOT / "bench" / "cache"}
SOURCES = sorted(
    path
    for transfer in LEVEL
    for path in (ROOT / transfer).rglob("*.py")
    if not SCRIPTS.intersection(path.parents)
)

Name = tuple[str, ...]


def name_of(path: Path) -> Name:
    """Return a module's name as a tuple; a package's own file is `__init__`."""
    return path.relative_to(ROOT).with_suffix("").parts


MODULES = frozenset(map(name_of, SOURCES))


def module_of(name: Name) -> Name | None:
    """Return the module that holds this name, or None if it belongs to no room."""
    for known in (name, (*name, "__init__"), name[:-1], (*name[:-1], "__init__")):
        if known in MODULES:
            return known
    return None


def imported_text(call: ast.Call) -> str | None:
    """Return the module named as a text in a call of import_module(), or None for any other
    call."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    first = call.args[0] if call.args else None
    if name != "import_module" or not isinstance(first, ast.Constant):
        return None
    return str(first.value)


@cache
def imports(path: Path) -> frozenset[Name]:
    """Return the modules of rooms imported by a file, at any depth. Count relative and absolute
    imports, and texts given to import_module()."""
    package = path.relative_to(ROOT).parts[:-1]
    names: set[Name] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module or "").split(".")) if node.module else base
            if not node.level:
                if module[0] != "tasuki":
                    continue
                module = module[1:]
            names |= {(*module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            parts = (tuple(alias.name.split(".")) for alias in node.names)
            names |= {name[1:] for name in parts if name[0] == "tasuki"}
        elif isinstance(node, ast.Call) and (text := imported_text(node)) is not None:
            dots = len(text) - len(text.lstrip("."))
            module = tuple(text[dots:].split("."))
            if dots:
                names.add((*package[: len(package) - dots + 1], *module))
            elif module[0] == "tasuki":
                names.add(module[1:])
    found = {module_of(name) for name in names}
    return frozenset(name for name in found if name is not None and name != name_of(path))


def siblings() -> dict[Name, dict[str, set[str]]]:
    """Return the imports among siblings: by folder, the names each entry imports."""
    found: dict[Name, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in SOURCES:
        own = name_of(path)
        for other in imports(path):
            depth = next(at for at, (a, b) in enumerate(zip(own, other, strict=False)) if a != b)
            found[own[:depth]][own[depth]].add(other[depth])
    return found


def circle(edges: dict[str, set[str]]) -> list[str]:
    """Return the members of an import circle in order, or an empty list if there is none."""
    done: set[str] = set()

    def walk(at: str, way: list[str]) -> list[str]:
        if at in way:
            return [*way[way.index(at) :], at]
        if at not in done:
            for following in sorted(edges.get(at, ())):
                if found := walk(following, [*way, at]):
                    return found
            done.add(at)
        return []

    return next((found for start in sorted(edges) if (found := walk(start, []))), [])


def upward_imports(path: Path) -> list[str]:
    """Return the rooms imported by a file but not below its own."""
    transfer = path.relative_to(ROOT).parts[0]
    transfers = {name[0] for name in imports(path)} - {transfer}
    return sorted(other for other in transfers if LEVEL[other] >= LEVEL[transfer])


def test_imports_point_downward() -> None:
    faults = [
        f"{path.relative_to(ROOT)} imports {upward}: not below it"
        for path in SOURCES
        if (upward := upward_imports(path))
    ]
    assert not faults, "\n".join(faults)


def test_no_folder_has_a_circle() -> None:
    circles = {"/".join(folder): circle(edges) for folder, edges in siblings().items()}
    assert not {folder: found for folder, found in circles.items() if found}


# This will be another process. Other folders may import only its package of messages and its
# description. The assembly of a daemon is excepted, since it builds the engine to run.
ENGINE_SURFACE = {("engine", "messages"), ("engine", "config")}
ASSEMBLY = {
    ("server", "daemon"),
    ("server", "workers"),
    *(
        (transfer, file)
        for transfer in ("prefill_node", "decode_node")
        for file in ("node", "engine_side")
    ),
}


def outside_the_engine() -> Iterator[tuple[Path, Name]]:
    for path in SOURCES:
        own = name_of(path)
        if own[0] in ("engine", "bench", "cli") or own[:2] in ASSEMBLY or own[-1] == "main":
            continue
        for other in imports(path):
            if other[0] == "engine" and other[:2] not in ENGINE_SURFACE:
                yield path.relative_to(ROOT), other


def test_the_engine_is_reached_by_messages() -> None:
    assert not list(outside_the_engine())


def test_the_check_sees_relative_and_absolute_imports() -> None:
    seen = imports(ROOT / "engine" / "engine.py")
    assert ("engine", "scheduling", "scheduler") in seen
    assert ("pycache", "prefix_cache") in seen
    call = ast.parse("importlib.import_module('.fleet', __package__)", mode="eval").body
    assert isinstance(call, ast.Call) and imported_text(call) == ".fleet"
    assert len(SOURCES) > 40


def test_the_check_finds_a_circle() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []
