"""Rewrite a method so that the norms of q and k reach the function that rotates them.

    q = self.q_norm(self.q_proj(x)).transpose(1, 2)
    k = self.k_norm(self.k_proj(x)).transpose(1, 2)
    q, k = rotate(q, k, cos, sin)

becomes

    q = self.q_proj(x).transpose(1, 2); norm_0 = self.q_norm
    k = self.k_proj(x).transpose(1, 2); norm_1 = self.k_norm
    q, k = rotate(q, k, cos, sin, norms=(norm_0, norm_1))

The norm of the last axis can wait for a transpose of other axes, and for statements that neither name the
array nor write into memory. Before any other statement, and at the end of a branch without the rotation, it
runs as in the original.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from types import CodeType, FunctionType
from typing import Any, NamedTuple

# Statements as `ast.unparse` writes them. An argument of a norm is an expression: `_is_expression`.
NORM = re.compile(r"(\w+) = self\.(\w*norm\w*)\((.+)\)")
NORM_CALL = re.compile(r"self\.(\w*norm\w*)\(")
TRANSPOSED = ".transpose(1, 2)"
WRITES = re.compile(r"(?m) [-+*/@&|^%]+= |\w_\(|^[^=\n]*\][^=\n]* = ")  # x += 1, x.clamp_(), x[0] = 1
Pending = dict[str, str]  # for the name of an array, the variable that holds its norm


class NormCode(NamedTuple):
    """A rewritten method.

    Attributes
    ----------
    code
        The new code, or None if no norm reaches a rotation.
    norms
        The attributes of the module that hold these norms.
    kept
        The other norms of rotated arrays, and for each the reason why it runs as before.
    """

    code: CodeType | None
    norms: tuple[str, ...]
    kept: Mapping[str, str]


def rewrite(function: FunctionType, rotary: Mapping[str, int]) -> NormCode:
    """Rewrite a method; `rotary` has the global functions that rotate, and how many arrays each takes."""
    kept: dict[str, str] = {}
    code = function.__code__
    try:
        source = textwrap.dedent(inspect.getsource(function))
        if code.co_freevars or _compiled(source, [], function).co_names != code.co_names:
            return NormCode(None, (), kept)  # the file has changed since its import
    except (OSError, TypeError, SyntaxError):
        return NormCode(None, (), kept)
    rewriter = _Rewriter(source, rotary, {*code.co_cellvars})
    body = rewriter.rewritten()
    while unused := rewriter.unused:  # at most once for each norm
        kept |= unused
        rewriter = _Rewriter(source, rotary, {*code.co_cellvars, *kept})
        body = rewriter.rewritten()
    norms = tuple(rewriter.given)
    return NormCode(_compiled(source, body, function) if norms else None, norms, kept | rewriter.odd)


def _compiled(source: str, body: list[ast.stmt], function: FunctionType) -> CodeType:
    """Return the code of a function of this source, with another body if one is given."""
    tree = ast.parse(source)
    definition: Any = tree.body[0]
    definition.decorator_list, definition.returns = [], None
    definition.body = body or definition.body
    ast.increment_lineno(tree, function.__code__.co_firstlineno - 1)
    module = compile(tree, function.__code__.co_filename, "exec", dont_inherit=True)
    codes = (c for c in module.co_consts if isinstance(c, CodeType))
    return next(c for c in codes if c.co_name == function.__name__)


class _Rewriter:
    """Rewrites a function's statements in their order, with the norms that still wait for a rotation."""

    def __init__(self, source: str, rotary: Mapping[str, int], excluded: set[str]):
        self.source, self.excluded = source, excluded
        self.rotary = rotary
        calls = filter(None, map(self._arrays_of, ast.walk(ast.parse(source))))
        self.arrays = {name for names in calls for name in names}
        self.rotated: set[str] = set()  # names of arrays that are rotated already
        self.attributes: dict[str, str] = {}  # of the norms by variable
        self.given: dict[str, None] = {}  # attributes whose norm reaches a rotation
        self.causes: dict[str, str] = {}  # why a norm runs before its array is rotated, by attribute
        self.odd: dict[str, str] = {}  # likewise, of statements that do more than a norm

    @property
    def unused(self) -> dict[str, str]:
        """The attributes whose norm reaches no rotation, with the reasons."""
        names = [name for name in self.attributes.values() if name not in self.given]
        return {name: self.causes.get(name, "its array is not rotated after it") for name in names}

    def rewritten(self) -> list[ast.stmt]:
        definition: Any = ast.parse(self.source).body[0]
        body = self._block(definition.body, {})
        return [*(new for name in self.attributes for new in _code(f"{name} = None", body[0])), *body]

    def _block(self, statements: Iterable[ast.stmt], pending: Pending) -> list[ast.stmt]:
        return [new for statement in statements for new in self._rewrite(statement, pending)]

    def _rewrite(self, statement: ast.stmt, pending: Pending) -> list[ast.stmt]:
        """Return the statements in place of one, and update `pending`."""
        if isinstance(statement, ast.If) and not _words(ast.unparse(statement.test)) & pending.keys():
            return [self._branches(statement, pending)]
        text = ast.unparse(statement)
        before = self._run_norms(pending.keys() if WRITES.search(text) else (), pending, statement)
        for change in (self._take_norm, self._give_norms):
            if (new := change(text, pending)) is not None:
                return [*before, *_code(new, statement)]
        if text not in {f"{name} = {name}{TRANSPOSED}" for name in pending}:
            before += self._run_norms(_words(text) & pending.keys(), pending, statement)
        return [*before, statement]

    def _take_norm(self, text: str, pending: Pending) -> str | None:
        """Return an assignment without its norm, which waits; None if there is none, or not of one array."""
        target, call = text.partition(" = ")[0], NORM_CALL.search(text)
        if call is None or not _words(target) & self.arrays:
            return None
        match = NORM.fullmatch(text.removesuffix(TRANSPOSED))
        if target in self.rotated:
            self.odd[call[1]] = "it comes after the rotation"
        elif match is None or not _is_expression(match[3]) or _words(match[3]) & pending.keys():
            self.odd[call[1]] = f"`{text}` does more than a norm of each head"
        elif not {target, match[2]} & self.excluded:
            pending[target] = variable = f"_rope_array_norm_{len(self.attributes)}"
            self.attributes[variable] = match[2]
            transposed = TRANSPOSED if text.endswith(TRANSPOSED) else ""
            return f"{target} = ({match[3]}){transposed}; {variable} = self.{match[2]}"
        return None

    def _give_norms(self, text: str, pending: Pending) -> str | None:
        """Return a rotation with the norms that wait for its arrays; None if it does not have all of them."""
        call: Any = getattr(ast.parse(text).body[0], "value", None)
        names = self._arrays_of(call)
        self.rotated |= {*names}
        if not names or not {*names} <= pending.keys():
            return None
        rest = [*call.args[len(names) :], *call.keywords]
        if _words(" ".join(map(ast.unparse, rest))) & pending.keys():
            return None
        variables = [pending.pop(name) for name in names]
        self.given |= dict.fromkeys(self.attributes[variable] for variable in variables)
        return f"{text[:-1]}, norms=({', '.join(variables)},))"

    def _arrays_of(self, node: Any) -> list[str]:
        """Return the arrays of a call that rotates; of other code none."""
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in self.rotary:
            return []
        return [ast.unparse(arg) for arg in node.args[: self.rotary[ast.unparse(node.func)]]]

    def _branches(self, statement: ast.If, pending: Pending) -> ast.stmt:
        """Rewrite both branches. After them a norm still waits if it does in both, or began to in one."""
        before, then, other = dict(pending), dict(pending), dict(pending)
        statement.body = self._block(statement.body, then)
        statement.orelse = self._block(statement.orelse, other)
        pending.clear()
        for name, variable in {**then, **other}.items():
            is_new = variable not in before.values() and not (name in then and name in other)
            if then.get(name) == other.get(name) or is_new:
                pending[name] = variable
            else:
                statement.body += self._run_norms({name} & then.keys(), then, statement)
                statement.orelse += self._run_norms({name} & other.keys(), other, statement)
        return statement

    def _run_norms(self, names: Iterable[str], pending: Pending, cause: ast.stmt) -> list[ast.stmt]:
        """Return statements that run the norms of arrays, and keep the reason."""
        statements = []
        for name in sorted(names):
            variable = pending.pop(name)
            text = ast.unparse(cause).partition("\n")[0]
            self.causes[self.attributes[variable]] = f"`{text}` comes between the norm and the rotation"
            line = f"{name} = {name} if {variable} is None else {variable}({name})"
            statements += _code(line, cause)
        return statements


def _code(text: str, at: ast.stmt) -> list[ast.stmt]:
    """Return the statements of a text, at the line of another statement."""
    return [ast.increment_lineno(statement, at.lineno - 1) for statement in ast.parse(text).body]


def _words(text: str) -> set[str]:
    return {*re.findall(r"\w+", text)}


def _is_expression(text: str) -> bool:
    """Return whether a text is one argument: the parentheses that a pattern has found are a pair."""
    try:
        array: Any = ast.parse(f"[{text}]", mode="eval").body
    except SyntaxError:
        return False
    arguments = array.elts if isinstance(array, ast.List) else []
    return len(arguments) == 1 and not isinstance(arguments[0], ast.Starred)
