"""Rewrite the code of a function so that it calls a hook wherever it reads a value.

The source of the function is parsed, and each expression that can read Python state becomes a call of a hook:
``cfg.rate`` becomes ``@attribute(cfg, "rate")``.  File names and line numbers stay the same.  Hooks are free
variables whose names start with "@", so they cannot collide with names of the program.
"""

from __future__ import annotations
import __future__

import ast
import copy
import dis
import linecache
import types
from collections.abc import Iterator
from typing import Any

__all__ = ["HOOKS", "codes_in", "is_rewritten", "rewritten"]

HOOKS = (
    "attribute", "augment", "call", "context", "imported", "item", "iterate", "local", "method", "operate",
    "place", "slice", "store", "stored", "text", "truth", "use", "variable", "visible",
)  # fmt: skip
_FLAGS = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MOST = 4096  # entries of the table

_files: dict[tuple[str, int], _File] = {}  # by name, and by the flags of "from __future__ import"


def is_rewritten(code: types.CodeType) -> bool:
    """Return whether code calls hooks."""
    return any(name.startswith("@") for name in code.co_freevars)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield code, and the codes of the functions and classes in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes_in(each)


def rewritten(f: types.FunctionType) -> types.CodeType | None:
    """Return the code of ``f`` with hooks; None if its source is not known, or has changed since the import.

    The free variables of the result are those of ``f`` and the hooks that it uses.
    """
    code = f.__code__
    name = code.co_filename
    if name.startswith("<frozen "):  # a module of the standard library that is part of the interpreter
        name = f.__globals__.get("__file__") or name
    key, lines = (name, code.co_flags & _FLAGS), linecache.getlines(name)
    file = _files.get(key)
    if file is None or (file.lines is not lines and file.lines != lines):
        if len(_files) >= _MOST:
            _files.clear()
        file = _files[key] = _File(lines, *key)
    found = file.made.get(id(code))
    if found is None:
        found = file.made[id(code)] = code, file.rewritten(code)
    return found[1]


def _is_made_of(node: Any, code: types.CodeType) -> bool:
    """Return whether code is that of a function: a line may have several lambdas."""
    body = node.body
    if isinstance(body, list):
        return True
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    if places:
        return _start(body) <= min(places) <= max(places) <= (body.end_lineno, body.end_col_offset)
    # Python 3.12 has no position for a constant that is returned
    alone = compile(ast.Expression(body), "", "eval")
    return (alone.co_names, alone.co_consts[-1:]) == ((), code.co_consts[-1:])


class _File:
    """The functions in a file, and the codes that Python makes of them.

    ``functions`` has their nodes, with the names of the classes around them, by their first lines.
    ``made`` has the results of ``rewritten``, by the id of the code, which is kept alive.
    """

    def __init__(self, lines: list[str], name: str, flags: int) -> None:
        self.lines = lines
        self.made: dict[int, tuple[types.CodeType, types.CodeType | None]] = {}
        self.functions: dict[int, list[tuple[Any, str]]] = {}
        self.codes: set[types.CodeType] = set()
        try:
            tree = ast.parse("".join(lines))
            self.codes.update(codes_in(compile(tree, name, "exec", flags, dont_inherit=True)))
        except (SyntaxError, ValueError, RecursionError):  # the file is not Python
            return
        todo: list[tuple[Any, str]] = [(tree, "")]
        while todo:
            node, owner = todo.pop()
            if isinstance(node, _FUNCTIONS):
                first = min(n.lineno for n in (node, *getattr(node, "decorator_list", ())))
                self.functions.setdefault(first, []).append((node, owner))
            owner = node.name if isinstance(node, ast.ClassDef) else owner
            todo += [(child, owner) for child in ast.iter_child_nodes(node)]

    def rewritten(self, code: types.CodeType) -> types.CodeType | None:
        """Return code with hooks; None if it is not the code of a function of the file."""
        # pytest rewrites assertions: such code has other instructions
        names = (*code.co_names, *code.co_varnames, *code.co_cellvars)
        if code not in self.codes and not any(name.startswith("@py") for name in names):
            return None
        found = [
            (node, owner)
            for node, owner in self.functions.get(code.co_firstlineno, ())
            if getattr(node, "name", "<lambda>") == code.co_name and _is_made_of(node, code)
        ]
        if not found:
            return None
        node, owner = max(
            found, key=lambda each: _start(each[0])
        )  # the innermost of several lambdas in a line
        return _with_hooks(copy.deepcopy(node), code, owner)


def _start(node: Any) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _with_hooks(node: Any, code: types.CodeType, owner: str) -> types.CodeType:
    """Return the code of a function with hooks, without its decorators, default values and annotations."""
    for a in ast.walk(node.args):
        if isinstance(a, ast.arg):
            a.annotation = None
    node.args.defaults = [ast.Constant(None) for _ in node.args.defaults]
    node.args.kw_defaults = [d and ast.Constant(None) for d in node.args.kw_defaults]
    if not isinstance(node, ast.Lambda):
        node.decorator_list, node.returns, node.type_params, node.name = [], None, [], "@function"
    node = _Rewriter(code, owner).visit(node)
    # the free variables of the function, and the hooks; inside of a class, Python renames private names,
    # as if the name of the class had no underscores at its start
    name = "_________" + owner
    tree: Any = ast.parse(f"def outer():\n class {name}: pass" if owner else "def outer(): pass")
    outer = tree.body[0]
    outer.args.args = [ast.arg(n) for n in (*code.co_freevars, *(f"@{hook}" for hook in HOOKS))]
    inner = outer.body[0] if owner else outer
    inner.body = [node if isinstance(node, ast.stmt) else ast.copy_location(ast.Expr(node), node)]
    ast.fix_missing_locations(tree)
    made = compile(tree, code.co_filename, "exec", code.co_flags & _FLAGS, dont_inherit=True)
    found = next(c for c in codes_in(made) if c.co_name == getattr(node, "name", "<lambda>"))
    return _renamed(found, found.co_qualname, code.co_qualname).replace(co_name=code.co_name)


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """Replace the start ``old`` of the qualified names of functions and classes by ``new``."""
    consts: list[Any] = []
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            each = _renamed(each, old, new)
        elif isinstance(each, str) and each.startswith(old):  # of a class
            each = new + each[len(old) :]
        consts.append(each)
    return code.replace(co_consts=tuple(consts), co_qualname=code.co_qualname.replace(old, new, 1))


def _outer_names(code: types.CodeType) -> set[str]:
    """Return the names of the variables outside of a function that it, or a function in it, reads."""
    found = set(code.co_freevars)
    for each in codes_in(code):
        found |= {
            i.argval
            for i in dis.get_instructions(each)
            if i.opname in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
        }
    return found - {"__class__"}


_LITERALS = (ast.Constant, ast.JoinedStr)


class _Rewriter(ast.NodeTransformer):
    """Inserts hooks into the definition of the function with this code; ``owner`` is the class around it."""

    def __init__(self, code: types.CodeType, owner: str) -> None:
        self.outer = _outer_names(code)
        self.owner = owner

    def hook(self, name: str, at: Any, *args: Any) -> Any:
        """Return a call of a hook at the place of the node ``at``."""
        given: list[Any] = [a if isinstance(a, ast.AST) else ast.Constant(a) for a in args]
        return ast.copy_location(ast.Call(ast.Name(f"@{name}", ast.Load()), given, []), at)

    def mangled(self, name: str) -> str:
        """Return the name that Python gives to ``__name`` inside of a class."""
        own = self.owner.lstrip("_")
        return f"_{own}{name}" if own and name.startswith("__") and not name.endswith("__") else name

    def visits(self, nodes: list[Any]) -> list[Any]:
        """Return what the nodes become; a statement may become several."""
        made = [n and self.visit(n) for n in nodes]
        return [s for m in made for s in (m if isinstance(m, list) else [m])]

    # Definitions -----------------------------------------------------------------------------------

    def _visit_function(self, node: Any) -> Any:
        args = node.args
        args.defaults, args.kw_defaults = self.visits(args.defaults), self.visits(args.kw_defaults)
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
            return node
        node.decorator_list = [self.hook("call", d, self.visit(d)) for d in node.decorator_list]
        start = ast.get_docstring(node, clean=False) is not None
        given = [ast.Name(a.arg, ast.Load()) for a in (node.args.vararg, node.args.kwarg) if a is not None]
        notes = [ast.copy_location(ast.Expr(self.hook("local", node, n)), node) for n in given]
        node.body = [*node.body[:start], *notes, *self.visits(node.body[start:])]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function  # noqa: N815  ast's names

    def visit_ClassDef(self, node: Any) -> Any:
        owner = self.owner
        node.decorator_list = [self.hook("call", d, self.visit(d)) for d in node.decorator_list]
        node.bases, node.keywords = self.visits(node.bases), self.visits(node.keywords)
        self.owner = node.name
        node.body = self.visits(node.body)
        self.owner = owner
        return node

    def visit_AnnAssign(self, node: Any) -> Any:
        """Keep the annotation, which is not evaluated in a function."""
        node.target, node.value = self.visits([node.target, node.value])
        return node

    def visit_Import(self, node: Any) -> Any:
        found = [self.hook("imported", node, a.name, 0, "") for a in node.names]
        return [node, *(ast.copy_location(ast.Expr(each), node) for each in found)]

    def visit_ImportFrom(self, node: Any) -> Any:
        found = [self.hook("imported", node, node.module or "", node.level, a.name) for a in node.names]
        return [node, *(ast.copy_location(ast.Expr(each), node) for each in found)]

    # Reads -----------------------------------------------------------------------------------------

    def visit_Name(self, node: Any) -> Any:
        name = self.mangled(node.id)
        if isinstance(node.ctx, ast.Load) and name in self.outer:
            return self.hook("variable", node, name, node)
        return node

    def visit_Attribute(self, node: Any) -> Any:
        node.value = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            return self.hook("attribute", node, node.value, self.mangled(node.attr))
        return node

    def visit_Subscript(self, node: Any) -> Any:
        read = isinstance(node.ctx, ast.Load)
        node.value, node.slice = self.visit(node.value), self._index(node.slice, read)
        return self.hook("item", node, node.value, node.slice) if read else node

    def _index(self, node: Any, read: bool = True) -> Any:
        """Return an expression for an index; if it is read, a slice becomes a call of ``slice``."""
        if isinstance(node, ast.Tuple):
            node.elts = [self._index(e, read) for e in node.elts]
            return node
        node = self.visit(node)
        if not isinstance(node, ast.Slice) or not read:
            return node
        none = ast.copy_location(ast.Constant(None), node)
        parts = [p or none for p in (node.lower, node.upper, node.step)]
        return self.hook("slice", node, *parts)

    def visit_Call(self, node: Any) -> Any:
        f = node.func
        if isinstance(f, ast.Attribute):
            node.func = self.hook("method", f, self.visit(f.value), self.mangled(f.attr))
        else:
            node.func = self.hook("call", f, self.visit(f))
        node.args = self.visits(node.args)
        if isinstance(f, ast.Name) and f.id in ("eval", "exec") and node.args:
            node.args[0] = self.hook("text", node.args[0], node.args[0])
        for k in node.keywords:
            k.value = self.visit(k.value) if k.arg else self._used(self.visit(k.value))
        hidden = isinstance(f, ast.Name) and f.id in ("locals", "vars", "dir") and not node.args
        return self.hook("visible", node, node) if hidden else node

    def _used(self, node: Any, operand: bool = False) -> Any:
        """Return an expression with a value that C code reads, or only an operator."""
        return self.hook("use", node, node, *[True] * operand)

    def _operand(self, node: Any) -> Any:
        return self._used(node, True)

    def _iterated(self, node: Any, target: Any = None) -> Any:
        """Return an expression that is iterated over; ``target`` is what its elements are assigned to."""
        return self.hook("iterate", node, node, *[True] * isinstance(target, (ast.Tuple, ast.List)))

    def visit_Starred(self, node: Any) -> Any:
        node.value = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            node.value = self._iterated(node.value)
        return node

    def visit_Dict(self, node: Any) -> Any:
        node.keys, values = self.visits(node.keys), self.visits(node.values)
        node.values = [v if k else self._used(v) for k, v in zip(node.keys, values, strict=True)]
        return self.hook("local", node, node)

    def _visit_new(self, node: Any) -> Any:
        node = self.generic_visit(node)
        read = isinstance(getattr(node, "ctx", None), (ast.Load, type(None)))
        constant = isinstance(node, ast.Tuple) and all(isinstance(e, ast.Constant) for e in node.elts)
        return self.hook("local", node, node) if read and not constant else node

    visit_List = visit_Set = visit_Tuple = _visit_new  # noqa: N815
    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _visit_new  # noqa: N815

    def visit_comprehension(self, node: Any) -> Any:
        tests, node.ifs = node.ifs, []
        node = self.visit_For(node)
        node.ifs = [*map(self._tested, tests)]
        return node

    def visit_For(self, node: Any) -> Any:
        node = self.generic_visit(node)
        node.iter = self._iterated(node.iter, node.target)
        return node

    def visit_YieldFrom(self, node: Any) -> Any:
        node.value = self._used(self.visit(node.value))
        return node

    def visit_FormattedValue(self, node: Any) -> Any:
        node = self.generic_visit(node)
        node.value = self._operand(node.value)
        return node

    def visit_With(self, node: Any) -> Any:
        node = self.generic_visit(node)
        for item in node.items:
            item.context_expr = self.hook("context", item.context_expr, item.context_expr)
        return node

    def visit_Match(self, node: Any) -> Any:
        """Read the classes and constants in the patterns, too; a pattern itself cannot have hooks."""
        parts: list[Any] = [n for case in node.cases for n in ast.walk(case.pattern)]
        read = [
            n.cls if isinstance(n, ast.MatchClass) else n.value
            for n in parts
            if isinstance(n, (ast.MatchClass, ast.MatchValue))
        ]
        names: list[Any] = [n for n in read if isinstance(n, (ast.Attribute, ast.Name))]
        for n in parts:
            if isinstance(n, ast.MatchClass) and n.patterns:
                given: list[Any] = [n.cls, ast.Constant("__match_args__"), ast.Constant(None)]
                names.append(ast.copy_location(ast.Call(ast.Name("getattr", ast.Load()), given, []), n.cls))
        notes = [ast.copy_location(ast.Expr(self.visit(copy.deepcopy(n))), n) for n in names]
        node.subject = self._used(self.visit(node.subject))
        for case in node.cases:
            case.guard = case.guard and self._tested(case.guard)
            case.body = self.visits(case.body)
        return [*notes, node]

    # Conditions and operators ------------------------------------------------------------------------

    def _tested(self, node: Any) -> Any:
        """Return a condition; the hook returns its truth, so that ``__bool__`` is called once."""
        if isinstance(node, ast.BoolOp):
            node.values = [*map(self._tested, node.values)]
            return node
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            node.operand = self._tested(node.operand)
            return node
        return self.hook("truth", node, self.visit(node))

    def visit_BoolOp(self, node: Any) -> Any:
        *tested, last = self.visits(node.values)
        node.values = [*map(self._operand, tested), last]
        return node

    def _visit_test(self, node: Any) -> Any:
        test, node.test = node.test, ast.Constant(None)
        node = self.generic_visit(node)
        node.test = self._tested(test)
        return node

    visit_If = visit_While = visit_IfExp = visit_Assert = _visit_test  # noqa: N815

    def visit_UnaryOp(self, node: Any) -> Any:
        if isinstance(node.op, ast.Not):
            return self._tested(node)
        node.operand = self.visit(node.operand)
        return node if isinstance(node.operand, _LITERALS) else self._operate(node, node.op, node.operand)

    def visit_BinOp(self, node: Any) -> Any:
        node.left, node.right = self.visits([node.left, node.right])
        return self._operate(node, node.op, node.left, node.right)

    def _operate(self, at: Any, op: Any, *operands: Any) -> Any:
        return self.hook("operate", at, OPERATORS[type(op)], *operands)

    def visit_Compare(self, node: Any) -> Any:
        node.left, node.comparators = self.visit(node.left), self.visits(node.comparators)
        op = node.ops[0]
        if len(node.ops) > 1:
            node.left, *node.comparators = map(self._operand, (node.left, *node.comparators))
        elif isinstance(op, ast.NotIn):
            found = self._operate(node, ast.In(), node.left, *node.comparators)
            return ast.copy_location(ast.UnaryOp(ast.Not(), found), node)
        elif type(op) in OPERATORS:
            return self._operate(node, op, node.left, node.comparators[0])
        return node

    # Assignments -----------------------------------------------------------------------------------

    def visit_Assign(self, node: Any) -> Any:
        """Replace ``a.b = c`` by ``@store(c, a, "b", False)``."""
        shown = isinstance(node.value, ast.Tuple)
        node.value = self.visit(node.value)
        for target in node.targets:
            if isinstance(target, (ast.Tuple, ast.List)) and not shown:
                inner = [t for t in target.elts if isinstance(t, (ast.Tuple, ast.List))]
                node.value = self._iterated(node.value, *inner[:1])
            elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice):
                node.value = self._iterated(node.value)
        (target, *more) = node.targets
        if more or not isinstance(target, (ast.Attribute, ast.Subscript, ast.Name)):
            node.targets = self.visits(node.targets)
            return node
        if isinstance(target, ast.Name):
            return self._assigned(target, node.value, node)
        return self._statement("store", node, node.value, *self._place(target))

    def visit_AugAssign(self, node: Any) -> Any:
        """Replace ``a.b += c`` by ``@augment("iadd", @place(a, "b", False), c)``."""
        op, target, value = "i" + OPERATORS[type(node.op)], node.target, self.visit(node.value)
        if isinstance(target, ast.Name):
            old = self.visit(ast.copy_location(ast.Name(target.id, ast.Load()), target))
            return self._assigned(target, self.hook("operate", node, op, old, value), node)
        return self._statement("augment", node, op, self.hook("place", target, *self._place(target)), value)

    def _statement(self, name: str, at: Any, *args: Any) -> Any:
        return ast.copy_location(ast.Expr(self.hook(name, at, *args)), at)

    def _place(self, target: Any) -> tuple[Any, Any, bool]:
        """Return the owner and the key of an attribute or an item, and whether it is an item."""
        owner = self.visit(target.value)
        if isinstance(target, ast.Subscript):
            return owner, self._index(target.slice), True
        return owner, self.mangled(target.attr), False

    def _assigned(self, target: Any, value: Any, at: Any) -> Any:
        """Return an assignment to a variable, with a hook if the variable is outside."""
        name = self.mangled(target.id)
        return ast.copy_location(
            ast.Assign([target], self.hook("stored", at, name, value) if name in self.outer else value), at
        )


# fmt: off
OPERATORS = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv",
    ast.Mod: "mod", ast.Pow: "pow", ast.MatMult: "matmul", ast.LShift: "lshift", ast.RShift: "rshift",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.USub: "neg", ast.UAdd: "pos",
    ast.Invert: "invert", ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt",
    ast.GtE: "ge", ast.In: "contains",
}
# fmt: on
