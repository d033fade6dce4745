"""Mutants of a Python file: what a slip of the hand would make of each expression and statement.

Pure. Only code inside functions is touched: what stands around it are settings and declarations.
Texts are left alone (messages, logging, assertions of the code about itself), since a change there
is no measure of the tests. Invariant: a mutant still parses.
"""

import ast
from collections.abc import Iterator

from scripts.mutate.mutant import Edit, Mutant, numbered

_COMPARE: dict[type[ast.cmpop], tuple[str, type[ast.cmpop]]] = {
    ast.Lt: ("<", ast.LtE),
    ast.LtE: ("<=", ast.Lt),
    ast.Gt: (">", ast.GtE),
    ast.GtE: (">=", ast.Gt),
    ast.Eq: ("==", ast.NotEq),
    ast.NotEq: ("!=", ast.Eq),
    ast.Is: ("is", ast.IsNot),
    ast.IsNot: ("is-not", ast.Is),
    ast.In: ("in", ast.NotIn),
    ast.NotIn: ("not-in", ast.In),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, type[ast.operator]]] = {
    ast.Add: ("+", ast.Sub),
    ast.Sub: ("-", ast.Add),
    ast.Mult: ("*", ast.FloorDiv),
    ast.FloorDiv: ("//", ast.Mult),
    ast.Div: ("/", ast.Mult),
    ast.Mod: ("%", ast.Mult),
    ast.LShift: ("<<", ast.RShift),
    ast.RShift: (">>", ast.LShift),
    ast.BitAnd: ("&", ast.BitOr),
    ast.BitOr: ("|", ast.BitAnd),
    ast.BitXor: ("^", ast.BitOr),
}
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_UNSAID = {"log", "logging", "warnings"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def mutants_of(source: bytes, module: str) -> list[Mutant]:
    """module: what the keys begin with."""
    tree = ast.parse(source)
    edits = [
        edit
        for name, function in _functions(tree, module)
        for edit in _Function(source, name, function).edits()
    ]
    return numbered(edits)


def _functions(node: ast.AST, name: str) -> Iterator[tuple[str, Function]]:
    """Outermost functions and methods, with their full names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield f"{name}.{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{name}.{child.name}")


class _Function:
    """Collects the edits of one function."""

    def __init__(self, source: bytes, symbol: str, function: Function) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._symbol = symbol
        self._function = function
        start, end = self._span(function)
        self._scope = source[start:end].decode()
        self._found: list[Edit] = []

    def edits(self) -> list[Edit]:
        says_bool = isinstance(self._function.returns, ast.Name) and (
            self._function.returns.id == "bool"
        )
        for statement in self._function.body:
            self._visit(statement, says_bool)
        return self._found

    def _visit(self, node: ast.AST, says_bool: bool) -> None:
        match node:
            case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
                return
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Expr(value=call) if _unsaid(call):
                return
            case ast.Raise():
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    self._visit(value, says_bool)
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for statement in node.body:
                    self._visit(statement, False)
                return
            case _:
                self._mutate(node, says_bool)
        for child in ast.iter_child_nodes(node):
            self._visit(child, says_bool)

    def _mutate(self, node: ast.AST, says_bool: bool) -> None:
        match node:
            case ast.Compare():
                for place, operator in enumerate(node.ops):
                    name, other = _COMPARE[type(operator)]
                    ops = [other() if i == place else op for i, op in enumerate(node.ops)]
                    self._replace(node, name, ast.Compare(node.left, ops, node.comparators))
            case ast.BoolOp():
                other_bool = ast.Or() if isinstance(node.op, ast.And) else ast.And()
                name = "and" if isinstance(node.op, ast.And) else "or"
                self._replace(node, name, ast.BoolOp(other_bool, node.values))
            case ast.BinOp() if type(node.op) in _ARITHMETIC:
                name, operator_type = _ARITHMETIC[type(node.op)]
                self._replace(node, name, ast.BinOp(node.left, operator_type(), node.right))
            case ast.AugAssign() if type(node.op) in _ARITHMETIC:
                name, operator_type = _ARITHMETIC[type(node.op)]
                changed = ast.AugAssign(node.target, operator_type(), node.value)
                self._replace(node, f"{name}=", changed)
            case ast.UnaryOp(op=ast.Not()):
                self._replace(node, "not", node.operand)
            case ast.Constant(value=bool(value)):
                self._replace(node, str(value), ast.Constant(not value))
            case ast.Constant(value=int(value)):
                self._replace(node, "number", ast.Constant(value + 1))
            case ast.Constant(value=float(value)):
                self._replace(node, "number", ast.Constant(value * 2 + 1))
            case ast.If():
                self._branch(node)
            case ast.IfExp():
                self._replace(node.test, "if", ast.UnaryOp(ast.Not(), node.test))
            case ast.Return(value=value) if value is not None:
                wrong = ast.UnaryOp(ast.Not(), value) if says_bool else ast.Constant(None)
                if ast.unparse(wrong) != ast.unparse(value):
                    self._replace(value, "return", wrong)
            case ast.Expr(value=ast.Call() | ast.Await()):
                self._replace(node, "statement", ast.Pass())
            case ast.Assign(targets=[ast.Attribute()]) if self._function.name != "__init__":
                self._replace(node, "assignment", ast.Pass())

    def _branch(self, node: ast.If) -> None:
        self._replace(node.test, "if", ast.UnaryOp(ast.Not(), node.test))
        if not node.orelse and isinstance(node.body[-1], _LEAVES):
            self._replace(node.test, "guard", ast.Constant(False))

    def _replace(self, old: ast.AST, operator: str, new: ast.AST) -> None:
        start, end = self._span(old)
        text = ast.unparse(ast.fix_missing_locations(new))
        if isinstance(old, ast.expr):
            text = f"({text})"
        self._found.append(Edit(self._symbol, operator, start, end, text, self._scope))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._lines[node.lineno - 1] + node.col_offset,
            self._lines[node.end_lineno - 1] + node.end_col_offset,
        )


def _unsaid(call: ast.expr) -> bool:
    """Whether the statement only writes text for people."""
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in _UNSAID
    )
