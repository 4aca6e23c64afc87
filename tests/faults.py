"""Small faults for Python code: each changes one expression, as its text stands in the file.

What is only said (docstrings, annotations, errors), decorators and imports are left alone, and so
is `strict=` of zip, which guards against what the rest of the code rules out.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

SWAPPED_OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
}
# A bound moved by one, and the opposite.
COMPARISONS = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
OTHER_NAMES = {
    "min": "max",
    "minimum": "maximum",
    "any": "all",
    "argmin": "argmax",
    "ceil": "floor",
}
OTHER_NAMES |= {other: name for name, other in OTHER_NAMES.items()} | {"sum": "mean"}
# Functions of one array that are left out.
LEFT_OUT = {
    "abs",
    "sqrt",
    "square",
    "exp",
    "expm1",
    "log",
    "conj",
    "transpose",
    "swapaxes",
    "sorted",
}
# Functions whose arguments may change places, and those where that is noticed by anything.
SYMMETRIC = {"min", "max", "minimum", "maximum", "multiply", "add", "logical_and", "logical_or"}
SYMMETRIC |= {"result_type", "promote_types", "tree_add", "join"}  # join: of `parameters`
NOISY = {"isinstance", "getattr", "hasattr", "setattr"}
SILENT = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)


class Mutant(NamedTuple):
    """A fault: which bytes of a file stand for which others; the line before and after."""

    kind: str
    line: int
    start: int
    end: int
    new: str
    before: str
    after: str

    def of(self, source: str) -> str:
        """The file with the fault."""
        data = source.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(source: str) -> list[Mutant]:
    """All faults of a file, by place; each is Python, and other code than the file's."""
    data, tree = source.encode(), ast.parse(source)
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = {}
    for node in _spoken(tree):
        for kind, place, new in _faults(node):
            if ast.dump(ast.parse(new, mode="eval").body) == ast.dump(place):
                continue
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[place.end_lineno - 1] + place.end_col_offset
            first, last = starts[place.lineno - 1], starts[place.end_lineno]
            before = data[first:last].decode()
            after = (data[first:start] + new.encode() + data[end:last]).decode()
            lines = [" ".join(text.split()) for text in (before, after)]
            found.setdefault((start, end, new), Mutant(kind, place.lineno, start, end, new, *lines))
    return [found[key] for key in sorted(found)]


def _spoken(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that are computed with."""
    if isinstance(tree, SILENT) or (isinstance(tree, ast.keyword) and tree.arg == "strict"):
        return
    yield tree
    skipped = {"decorator_list", "returns", "annotation", "type_comment"}
    for field, value in ast.iter_fields(tree):
        if field in skipped:
            continue
        for node in value if isinstance(value, list) else [value]:
            text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.AST) and not text and not _is_main(node):
                yield from _spoken(node)


def _is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.dump(node.test)


def _faults(node: ast.AST) -> Iterator[tuple[str, ast.AST, str]]:
    """(kind, what is replaced, by which text) for a node itself."""
    text = ast.unparse
    match node:
        case ast.BinOp(left, op, right):
            if other := SWAPPED_OPERATORS.get(type(op)):
                yield "operator", node, f"({_in(left)} {other} {_in(right)})"
                yield "term dropped", node, _in(left)
            if isinstance(op, ast.Add | ast.Sub | ast.Mult):
                yield "term dropped", node, _in(right)
        case ast.BoolOp(op, values):
            word = "or" if isinstance(op, ast.And) else "and"
            yield "and/or", node, f"({f' {word} '.join(map(_in, values))})"
            for one in values:
                rest = [_in(value) for value in values if value is not one]
                same = "and" if word == "or" else "or"
                yield "condition dropped", node, f"({f' {same} '.join(rest)})"
        case ast.Compare(left, [op], [right]):
            for other in COMPARISONS[type(op)]:
                yield "comparison", node, f"({_in(left)} {other} {_in(right)})"
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield "sign", node, _in(operand)
        case ast.Constant(value) if value in (True, False) and isinstance(value, bool):
            yield "constant", node, str(not value)
        case ast.Constant(value) if isinstance(value, int):
            yield "constant", node, f"{value + 1}"
            yield "constant", node, f"({value - 1})"
        case ast.Constant(value) if isinstance(value, float):
            yield "constant", node, f"{2 * value!r}" if value else "1.0"
        case ast.Attribute(value, "T" | "mT"):
            yield "transpose dropped", node, _in(value)
        case ast.IfExp(_, body, orelse):
            yield "condition dropped", node, _in(body)
            yield "condition dropped", node, _in(orelse)
        case ast.If(test):
            yield "condition dropped", test, "False"
            yield "condition", test, f"(not {_in(test)})"
        case ast.Call(function, arguments):
            name = getattr(function, "attr", getattr(function, "id", ""))
            owner = function.value if isinstance(function, ast.Attribute) else None
            if other := OTHER_NAMES.get(name):
                new = other if owner is None else f"{_in(owner)}.{other}"
                yield "function", function, new
            if name in LEFT_OUT and (arguments or owner):
                module = isinstance(owner, ast.Name) and owner.id in ("jnp", "np", "math", "lax")
                kept = arguments[0] if owner is None or module else owner
                yield "function dropped", node, _in(kept)
            if name in SYMMETRIC or name in NOISY:
                return
            if len(arguments) > 1 and not any(isinstance(a, ast.Starred) for a in arguments[:2]):
                first, second, *rest = [*map(text, arguments), *map(text, node.keywords)]
                swapped = ", ".join([second, first, *rest])
                yield "arguments swapped", node, f"{text(function)}({swapped})"


def _in(node: ast.AST) -> str:
    """An expression's text, such that it can stand inside another."""
    plain = isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript)
    return ast.unparse(node) if plain else f"({ast.unparse(node)})"
