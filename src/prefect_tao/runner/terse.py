"""A Python program without what only people read: comments, docstrings, types, most blanks and names of locals."""

from __future__ import annotations

import ast
import builtins
import io
import itertools
import keyword
import string
import tokenize
from collections.abc import Iterator

_WORDS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)


def terse(source: bytes) -> bytes:
    """The same program, shorter."""
    tree = ast.parse(source)
    _shorten_locals(tree)
    return _tight(ast.unparse(_Terse().visit(tree))).encode()


def _shorten_locals(tree: ast.Module) -> None:
    """Give variables that only one function knows short names; arguments keep theirs."""
    held = {*dir(builtins), *_names_of_module(tree)}
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    for function in (node for body in bodies for node in body if isinstance(node, ast.FunctionDef)):
        nodes = list(ast.walk(function))
        fixed = held | {name for node in nodes for name in _fixed_names(node)}
        names = [node for node in nodes if isinstance(node, ast.Name)]
        own = {node.id for node in names if isinstance(node.ctx, ast.Store)} - fixed
        short = _short_names(fixed | {node.id for node in names})
        given = {name: next(short) for name in dict.fromkeys(node.id for node in names) if name in own}
        for node in names:
            node.id = given.get(node.id, node.id)


def _names_of_module(tree: ast.Module) -> set[str]:
    """What a function may mean without having bound it."""
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    aliases = (node for node in ast.walk(tree) if isinstance(node, ast.alias))
    found |= {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    outside = (node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef))
    return found | {node.id for part in outside for node in ast.walk(part) if isinstance(node, ast.Name)}


def _fixed_names(node: ast.AST) -> list[str]:
    """Names that stand in a node as text, and that callers may use."""
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Nonlocal | ast.Global):
        return node.names
    return [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []


def _short_names(taken: set[str]) -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            name = "".join(letters)
            if name not in taken and not keyword.iskeyword(name):
                yield name


def _tight(text: str) -> str:
    """The same tokens with one blank where two words meet, and one for each level of a block."""
    made, depth, before = [], 0, tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += {tokenize.INDENT: 1, tokenize.DEDENT: -1}.get(token.type, 0)
        if token.type in (tokenize.INDENT, tokenize.DEDENT, tokenize.NL):
            continue
        if before == tokenize.NEWLINE:
            made.append(" " * depth)
        elif before in _WORDS and token.type in _WORDS:
            made.append(" ")
        made.append(token.string)
        before = token.type
    return "".join(made).strip()


class _Terse(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        return super().generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        return node.orelse if for_types else self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        for_types = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "TYPE_CHECKING"
        return None if for_types else self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        # Without types there is nothing left that a later Python would have to read.
        return None if node.module == "__future__" else node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], self.visit(node.value)), node)
