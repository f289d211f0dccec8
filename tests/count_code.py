"""Count lines of code by folder, without docstrings, comments and blank lines: ``python tests/count_code.py``.

It fails if a sum is above its bound, so that the project does not grow unnoticed.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The most lines of code in each folder, and the most source files in the package.
BOUNDS = {"gsparse": 45_800, "tests": 32_900, "asv_bench": 4_800}
MOST_FILES = 370


def count(path: Path) -> int:
    """Return the number of lines of code of a file in Python, C++ or CUDA."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
        return sum(bool(line.strip()) for line in text.splitlines())
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                lines.difference_update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return len(lines)


def main() -> int:
    code: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for path in sorted(path for top in BOUNDS for path in (ROOT / top).rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.suffix in (".py", ".cu", ".cuh", ".h") and ".asv" not in parts:
            names = {parts[0], "/".join(parts[:2]), "/".join(parts[:3])} - {path.relative_to(ROOT).as_posix()}
            code.update(dict.fromkeys(names, count(path)))
            files.update(names)
    for name in sorted(code):
        print(f"{name:40} {code[name]:7,} lines in {files[name]:4} files")
    above = [f"{name}: {code[name]:,} lines, at most {most:,}" for name, most in BOUNDS.items() if code[name] > most]
    above += [f"gsparse: {files['gsparse']} files, at most {MOST_FILES}"] if files["gsparse"] > MOST_FILES else []
    print("\n".join(above))
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
