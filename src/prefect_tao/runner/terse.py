"""A Python program without what only people read: comments, docstrings, types and most blanks."""

from __future__ import annotations

import ast
import io
import tokenize

_WORDS = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING)


def terse(source: bytes) -> bytes:
    """The same program, shorter."""
    return _tight(ast.unparse(_Terse().visit(ast.parse(source)))).encode()


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
