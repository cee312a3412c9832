"""How large the package is: modules and lines of code, a folder a line, and the folders that are too full.

    python benchmarks/size.py [DIRECTORY]

Lines of code are those that hold something else than blanks, comments and docstrings; `imports` tells how many of them
only import.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

MOST_MODULES = 20
PACKAGE = Path(__file__).resolve().parents[1] / "src" / "ulpscope"
_NO_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)


def lines_of(file: Path) -> tuple[set[int], set[int]]:
    """Lines of code, and those of them that import."""
    text = file.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in _NO_CODE for line in range(token.start[0], token.end[0] + 1)}
    imports: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return code, imports & code


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else PACKAGE
    modules: Counter[str] = Counter()
    code: Counter[str] = Counter()
    imports = 0
    for file in sorted(root.rglob("*.py")):
        folder, (lines, importing) = str(file.parent.relative_to(root)), lines_of(file)
        modules[folder] += 1
        code[folder] += len(lines)
        imports += len(importing)
    for folder, count in sorted(modules.items()):
        print(f"{count:4} modules {code[folder]:6,} lines  {folder}{'  TOO FULL' if count > MOST_MODULES else ''}")
    total = code.total()
    print(f"{modules.total()} modules, {total:,} lines of code, {imports:,} of them imports, {total - imports} without")


if __name__ == "__main__":
    main()
