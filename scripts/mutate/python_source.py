"""Makes mutants of a Python file: the typical slip in each expression and statement.

Pure. Only code inside functions is changed, because code outside is settings and declarations.
Texts are left alone (messages, logging, assertions of the code about itself), because tests need
not notice a change there. Invariant: a mutant still parses.
"""

import ast
from collections.abc import Iterator
from copy import copy
from typing import Any

from scripts.mutate.mutant import Edit, Mutant, numbered

_SWAPS: dict[type[ast.AST], tuple[str, type[Any]]] = {
    old: (name, new)
    for old, name, new in (
        *((ast.Lt, "<", ast.LtE), (ast.LtE, "<=", ast.Lt), (ast.Gt, ">", ast.GtE)),
        *((ast.GtE, ">=", ast.Gt), (ast.Eq, "==", ast.NotEq), (ast.NotEq, "!=", ast.Eq)),
        *((ast.Is, "is", ast.IsNot), (ast.IsNot, "is-not", ast.Is), (ast.In, "in", ast.NotIn)),
        *((ast.NotIn, "not-in", ast.In), (ast.And, "and", ast.Or), (ast.Or, "or", ast.And)),
        *((ast.Add, "+", ast.Sub), (ast.Sub, "-", ast.Add), (ast.Mult, "*", ast.FloorDiv)),
        *((ast.FloorDiv, "//", ast.Mult), (ast.Div, "/", ast.Mult), (ast.Mod, "%", ast.Mult)),
        *((ast.LShift, "<<", ast.RShift), (ast.RShift, ">>", ast.LShift)),
        *((ast.BitAnd, "&", ast.BitOr), (ast.BitOr, "|", ast.BitAnd), (ast.BitXor, "^", ast.BitOr)),
    )
}
"""For each operator class: the change's name, and the operator replacing it."""
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UNSAID = {"log", "logging", "warnings"}
"""Names of modules and objects called only to print texts for people."""
_LEFT_ALONE = (ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def mutants_of(source: bytes, module: str) -> list[Mutant]:
    """Return the mutants of a Python source text. module: prefix of their keys."""
    return numbered(
        [
            edit
            for name, function in _functions(ast.parse(source), module)
            for edit in _Edits(source, name, function).all()
        ]
    )


def _functions(node: ast.AST, name: str) -> Iterator[tuple[str, _Function]]:
    """Yield the outermost functions and methods, with their full names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function):
            yield f"{name}.{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{name}.{child.name}")


class _Edits:
    """The mutations of one function."""

    def __init__(self, source: bytes, symbol: str, function: _Function) -> None:
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._symbol = symbol
        self._function = function
        start, end = self._span(function)
        self._scope = source[start:end].decode()

    def all(self) -> Iterator[Edit]:
        returns = self._function.returns
        says_bool = isinstance(returns, ast.Name) and returns.id == "bool"
        for statement in self._function.body:
            yield from self._within(statement, says_bool)

    def _within(self, node: ast.AST, says_bool: bool) -> Iterator[Edit]:
        match node:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if (
                name in _UNSAID
            ):
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from self._within(value, says_bool)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for statement in node.body:
                    yield from self._within(statement, False)
                return
        if isinstance(node, _LEFT_ALONE):
            return
        for old, operator, new in self._changes(node, says_bool):
            start, end = self._span(old)
            text = ast.unparse(ast.fix_missing_locations(new))
            text = f"({text})" if isinstance(old, ast.expr) else text
            yield Edit(self._symbol, operator, start, end, text, self._scope)
        for child in ast.iter_child_nodes(node):
            yield from self._within(child, says_bool)

    def _changes(self, node: ast.AST, says_bool: bool) -> Iterator[tuple[ast.AST, str, ast.AST]]:
        """Yield each mutation of a node: the changed node, the change's name, and the node's
        replacement."""
        match node:
            case ast.Compare():
                for place, operator in enumerate(node.ops):
                    name, other = _SWAPS[type(operator)]
                    ops = [other() if i == place else op for i, op in enumerate(node.ops)]
                    yield node, name, ast.Compare(node.left, ops, node.comparators)
            case ast.BoolOp() | ast.BinOp() | ast.AugAssign() if type(node.op) in _SWAPS:
                name, other = _SWAPS[type(node.op)]
                changed = copy(node)
                changed.op = other()
                yield node, f"{name}=" if isinstance(node, ast.AugAssign) else name, changed
            case ast.UnaryOp(op=ast.Not()):
                yield node, "not", node.operand
            case ast.Constant(value=bool(value)):
                yield node, str(value), ast.Constant(not value)
            case ast.Constant(value=int(value)):
                yield node, "number", ast.Constant(value + 1)
            case ast.Constant(value=float(value)):
                yield node, "number", ast.Constant(value * 2 + 1)
            case ast.If():
                yield node.test, "if", ast.UnaryOp(ast.Not(), node.test)
                if not node.orelse and isinstance(node.body[-1], _LEAVES):
                    yield node.test, "guard", ast.Constant(False)
            case ast.IfExp():
                yield node.test, "if", ast.UnaryOp(ast.Not(), node.test)
            case ast.Return(value=value) if value is not None:
                wrong = ast.UnaryOp(ast.Not(), value) if says_bool else ast.Constant(None)
                if ast.unparse(wrong) != ast.unparse(value):
                    yield value, "return", wrong
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield node, "statement", ast.Pass()
            case ast.Assign(targets=[ast.Attribute()]) if self._function.name != "__init__":
                yield node, "assignment", ast.Pass()

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )
