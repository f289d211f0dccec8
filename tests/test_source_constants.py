"""Constants that kernels and the host must agree on: defined in the CUDA sources, and read there by the host."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gsparse.device.compilation import SOURCE_FOLDER
from gsparse.formats.launch import THREADS_PER_BLOCK
from gsparse.kernels import aggregation, algebra
from gsparse.kernels.gpu.source_constants import constant, defined_constants

LAUNCH_FOLDER = SOURCE_FOLDER.parent


def values_of_sources() -> dict[str, set[int]]:
    """Return the values of each constant of the CUDA sources, several of which may use one name."""
    values = defaultdict[str, set[int]](set)
    for path in SOURCE_FOLDER.glob("*.cu*"):
        for name in defined_constants(path.name):
            with suppress(KeyError):  # depends on the number of lanes of a warp
                values[name].add(constant(path.name, name))
    return values


VALUES = values_of_sources()
# The names of operations in `OPERATIONS` that the enumeration of the kernels writes out.
OPERATORS = {"ne": "NOT_EQUAL", "lt": "LESS", "gt": "GREATER"}


def test_constants_of_each_kind_are_read() -> None:
    assert constant("tiles.cuh", "GS_TILE") == 2048
    assert constant("sparse_rows.cu", "GS_TILE") == 2048, "a source has the constants of its headers"
    assert constant("sparse_edits.cu", "GS_SEVERAL") == 2**40
    assert constant("sparse_pairs.cu", "GS_RESULTS") == 2**40 - 1
    assert constant("independent_set.cu", "GS_ISOLATED") == -3
    assert [constant("parts.cuh", name) for name in ("GS_SLICE_POSITIONS", "GS_LONG_POSITIONS", "GS_LONG")] == [0, 2, 3]
    assert constant("port.cuh", "GS_MAX_THREADS") == 512


def test_unknown_constants_and_those_that_depend_on_the_warp_are_refused() -> None:
    with pytest.raises(KeyError, match="GS_NOTHING"):
        constant("tiles.cuh", "GS_NOTHING")
    with pytest.raises(KeyError, match="GS_WARP"):
        constant("tiles.cuh", "GS_TILE_WARPS")


def is_number(node: ast.expr | None) -> bool:
    """Tell whether an expression consists of numbers alone."""
    parts = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return node is not None and all(isinstance(part, parts) for part in ast.walk(node))


def numbers_of(path: Path) -> Iterator[tuple[str, Any, str]]:
    """List the names that a module assigns numbers to, with the numbers and the comments on them."""
    lines = path.read_text().splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        pairs = [(target, node.value)]
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(target.elts, node.value.elts, strict=True))
        first = node.lineno - 1
        while first and lines[first - 1].startswith("#"):
            first -= 1
        comment = " ".join(line.partition("#")[2] for line in lines[first : node.end_lineno])
        for name, value in pairs:
            if isinstance(name, ast.Name) and is_number(value):
                yield name.id, eval(ast.unparse(value)), comment


def defined_twice(path: Path) -> list[str]:
    """List the numbers of a module that a CUDA source defines as well: by their comments, or by names and values."""
    return [
        name
        for name, value, comment in numbers_of(path)
        if value in VALUES.get(f"GS_{name.lstrip('_')}", ()) or re.search(r"\bGS_[A-Z]", comment)
    ]


def test_a_number_that_is_defined_twice_is_found(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        '# Positions of a tile.\nTILE = 2048\n_FEW = 7\n# Threads (GS_SORT_THREADS).\n_T: int = 256\n'
        'A, _CHUNK = 1, 2**8\n_SMALL = 3\n_SCOPE = constant("setup_rows.cu", "GS_SCOPE")\n'
    )  # fmt: skip
    assert defined_twice(module) == ["TILE", "_T", "_CHUNK"]


@pytest.mark.parametrize("path", sorted(LAUNCH_FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_no_constant_of_a_kernel_is_written_again_in_its_launch_code(path: Path) -> None:
    found = defined_twice(path)
    assert not found, f"read these with gsparse.kernels.gpu.source_constants.constant: {', '.join(found)}"


def test_numbers_that_both_backends_share_are_those_of_the_kernels() -> None:
    for name, number in algebra.OPERATIONS.items():
        assert constant("sparse_pairs.cu", f"GS_{OPERATORS.get(name, name.upper())}") == number
    for name, number in {**algebra.TERMS, **algebra.EXTREMES, **algebra.TESTS}.items():
        assert constant("reductions.cu", f"GS_{name.upper().replace(' ', '_')}") == number
    for name in ("UNDECIDED", "OUTSIDE", "ISOLATED"):
        assert constant("independent_set.cu", f"GS_{name}") == getattr(aggregation, name)
    assert constant("port.cuh", "GS_MAX_THREADS") == max(THREADS_PER_BLOCK)
    assert constant("port.cuh", "GS_LARGEST_BLOCK") == constant("spmv_hubs.cu", "GS_HUB_THREADS")


def test_the_survey_reads_its_statistics_where_the_kernel_puts_them() -> None:
    from gsparse.kernels.gpu.survey import _COUNTERS, _FACTS

    assert len(_COUNTERS) == constant("parts.cuh", "GS_LONG")
    assert len(_FACTS) == constant("setup_survey.cu", "GS_CONTRADICTED") + 1
