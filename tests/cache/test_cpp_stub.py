"""The stub agrees with the extension in names, parameters, defaults and types.

The extension's own signatures are loose: a salt is `str`, tokens and kinds are `object`. Only there
the stub is narrower.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tasuki.pycache import _cpp_cache

STUB = ast.parse((Path(__file__).parents[2] / "pycache" / "_cpp_cache.pyi").read_text())
PLAIN = (
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r'typing\.Annotated\[(list\[int\]), "FixedSize\(\d+\)"\]', r"\1"),
    (r"typing\.Annotated\[numpy\.typing\.ArrayLike, (numpy\.\w+)\]", r"NDArray[\1]"),
    (r"collections\.abc\.|numpy\.typing\.|tasuki\.pycache\._cpp_cache\.|tasuki::\w+::", ""),
    (r"\bnumpy\.", "np."),
)
"""How pybind11 writes types, and how the stub does."""
OPEN = {"object": "", "function": "", "tuple": "tuple", "list": "list", "dict": "dict"}
"""Loose types of the extension; each with its generic type, if any."""
NULL_POINTERS = {"PeerTransfer.digest"}
"""Functions with a pointer result. They return None for a null pointer, but the extension's
signature leaves None out."""


@dataclass(frozen=True)
class Signature:
    """positional, keyword: parameters by name; none of a property."""

    positional: Mapping[str, ast.arg]
    keyword: Mapping[str, ast.arg]
    defaults: Mapping[str, ast.expr]
    result: ast.expr


def signature_of(function: ast.FunctionDef) -> Signature:
    arguments = function.args
    positional = [argument for argument in arguments.args if argument.arg != "self"]
    values = arguments.defaults
    defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    defaults |= {
        argument: value
        for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    }
    assert function.returns is not None
    return Signature(
        {argument.arg: argument for argument in positional},
        {argument.arg: argument for argument in arguments.kwonlyargs},
        {argument.arg: value for argument, value in defaults.items()},
        function.returns,
    )


def bound_signature(name: str, member: object) -> Signature:
    """Return the extension's signature of a function, or of a property's getter."""
    is_property = isinstance(member, property)
    text = str((member.fget if is_property else member).__doc__).strip().splitlines()[0]
    if is_property:
        text = re.sub(r"^.*\) ->", f"{name}() ->", text)
    for pattern, plain in PLAIN:
        text = re.sub(pattern, plain, text)
    (function,) = ast.parse(f"def {text}: ...").body
    assert isinstance(function, ast.FunctionDef)
    return signature_of(function)


ALIASES = {
    statement.target.id: statement.value
    for statement in STUB.body
    if isinstance(statement, ast.AnnAssign)
    and isinstance(statement.target, ast.Name)
    and statement.value is not None
}


def alternatives(kind: ast.expr) -> list[ast.expr]:
    if isinstance(kind, ast.BinOp):
        return [*alternatives(kind.left), *alternatives(kind.right)]
    return [kind]


def agree(stub: ast.expr, bound: ast.expr) -> bool:
    """Return whether the stub's type is the extension's, or is narrower at a loose one."""
    if isinstance(stub, ast.Name) and stub.id in ALIASES:
        stub = ALIASES[stub.id]
    if isinstance(bound, ast.Name) and bound.id in OPEN:
        return ast.unparse(stub).startswith(OPEN[bound.id])
    ours, theirs = alternatives(stub), alternatives(bound)
    if len(ours) != len(theirs):
        return False
    if len(ours) > 1:
        return all(any(agree(one, other) for other in theirs) for one in ours)
    if isinstance(stub, ast.Subscript) and isinstance(bound, ast.Subscript):
        return agree(stub.value, bound.value) and agree(stub.slice, bound.slice)
    if isinstance(stub, ast.Tuple | ast.List) and isinstance(bound, ast.Tuple | ast.List):
        pairs = zip(stub.elts, bound.elts, strict=False)
        return len(stub.elts) == len(bound.elts) and all(agree(*pair) for pair in pairs)
    return ast.dump(stub) == ast.dump(bound)


def differences(name: str, stub: Signature, bound: Signature) -> Iterator[str]:
    for kind in ("positional", "keyword"):
        ours, theirs = getattr(stub, kind), getattr(bound, kind)
        if [*ours] != [*theirs]:
            yield f"{name}: {kind} parameters {[*ours]}, not {[*theirs]}"
            continue
        for parameter in ours:
            written, said = ours[parameter].annotation, theirs[parameter].annotation
            # std::string takes both.
            is_text = ast.unparse(written) == "bytes" and ast.unparse(said) == "str"
            if not is_text and not agree(written, said):
                yield f"{name}({parameter}): {ast.unparse(written)}, not {ast.unparse(said)}"
    ours, theirs = ({k: ast.unparse(v) for k, v in each.defaults.items()} for each in (stub, bound))
    ours = {k: theirs.get(k, "") if v == "..." else v for k, v in ours.items()}
    if ours != theirs:
        yield f"{name}: defaults {ours}, not {theirs}"
    may_be_none = ast.unparse(stub.result) == f"{ast.unparse(bound.result)} | None"
    if not agree(stub.result, bound.result) and not (may_be_none and name in NULL_POINTERS):
        yield f"{name}: returns {ast.unparse(stub.result)}, not {ast.unparse(bound.result)}"


def described(body: list[ast.stmt]) -> Iterator[tuple[str, Signature]]:
    """Return functions, properties and Final attributes of a module or class, as in the stub."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef):
            yield statement.name, signature_of(statement)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            kind = statement.annotation
            if isinstance(kind, ast.Subscript) and ast.unparse(kind.value) == "Final":
                yield statement.target.id, Signature({}, {}, {}, kind.slice)


def public(names: Iterator[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def stub_names(body: list[ast.stmt]) -> set[str]:
    names: list[str] = []
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.append(statement.target.id)
        elif isinstance(statement, ast.Assign):
            names += [target.id for target in statement.targets if isinstance(target, ast.Name)]
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            names.append(statement.name)
    return public(iter(names))


CLASSES = [statement for statement in STUB.body if isinstance(statement, ast.ClassDef)]


def test_names_equal_the_stub() -> None:
    assert public(iter(dir(_cpp_cache))) == stub_names(STUB.body)
    for statement in CLASSES:
        found = getattr(_cpp_cache, statement.name)
        inherited = set(dir(Exception)) if issubclass(found, Exception) else set()
        if issubclass(found, Enum):
            inherited |= {"name", "value"}
        assert public(iter(dir(found))) - inherited == stub_names(statement.body), statement.name


def test_signatures_equal_the_stub() -> None:
    found: list[str] = []
    count = 0
    for owner, body in [("", STUB.body), *((each.name, each.body) for each in CLASSES)]:
        holder = getattr(_cpp_cache, owner) if owner else _cpp_cache
        for name, stub in described(body):
            bound = bound_signature(name, getattr(holder, name))
            found += differences(f"{owner}.{name}", stub, bound)
            count += 1
    assert not found, "\n".join(found)
    assert count > 250


def test_the_check_finds_what_is_wrong() -> None:
    bound = bound_signature("allocate", _cpp_cache.PrefixCache.allocate)
    right = (
        "tokens: NDArray[np.int32], *, salt: bytes = b'', capacity_tokens: int, "
        "working_slots: int, cursor: int | None = None) -> Allocation | None"
    )
    for old, new in (
        ("", ""),
        ("tokens", "prompt"),
        ("tokens: NDArray[np.int32], *,", "*, tokens: NDArray[np.int32],"),
        ("salt: bytes", "salt: int"),
        ("b''", "b'x'"),
        ("int | None = None", "int = None"),
        ("cursor: int | None = None", "cursor: int | None"),
        ("capacity_tokens: int", "capacity_tokens: float"),
        ("-> Allocation", "-> Match"),
    ):
        (written,) = ast.parse(f"def allocate(self, {right.replace(old, new)}: ...").body
        assert isinstance(written, ast.FunctionDef)
        faults = [*differences("allocate", signature_of(written), bound)]
        assert bool(faults) is bool(old), (old, faults)
