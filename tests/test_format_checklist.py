"""CONTRIBUTING.md lists the source files that a new storage format takes: these are enough, and all are needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_BINDING = """def padded(device, matrix, dtype, launch):
    kernel = ProductKernel("spmv_padded.cu", "padded", (value_type(matrix.values), matrix.columns.codes.dtype, dtype))
    sizes = np.int64(matrix.num_rows), np.int32(matrix.width), np.int64(matrix.pitch)
    args = (*sizes, *entry_args(matrix.values, matrix.columns))
    return bind_with_dots(device, kernel, _blocks(matrix.num_rows, launch), launch.threads_per_block, args, dtype)


"""
_INSTANTIATIONS = """            kernels.append(ProductKernel("spmv_padded.cu", "padded", (value, column, compute)))
"""
_COSTS = """    "padded": {"cpu": KernelModel(1.0, 0.0), "gpu": KernelModel(1.0, 0.0)},
"""
_IN_SPMV = '    "row_pattern": row_pattern,\n', '    "row_pattern": row_pattern,\n    "padded": padded,\n'
_IN_ALL = "__all__ = [\n", '__all__ = [\n    "padded",\n'


def before(line: str, added: str) -> tuple[str, str]:
    """Return the edit that adds a text before another one."""
    return line, added + line


# What is changed in each file: a text that stands there once, and what replaces it.
EDITS: dict[str, list[tuple[str, str]]] = {
    "gsparse/formats/measured_costs.py": [("KernelModel]] = {\n", "KernelModel]] = {\n" + _COSTS)],
    "gsparse/formats/__init__.py": [
        before("from gsparse.formats.registry", "from gsparse.formats.padded import PADDED\n"),
        ("    BSR,\n):", "    BSR,\n    PADDED,\n):"),
    ],
    "gsparse/kernels/cpu/__init__.py": [
        before("from gsparse.kernels.cpu.steps", "from gsparse.kernels.cpu.spmv_padded import padded\n"),
        _IN_SPMV,
        _IN_ALL,
    ],
    "gsparse/kernels/gpu/spmv.py": [
        before("def row_pattern(", _BINDING),
        before("            for name in (", _INSTANTIATIONS),
        _IN_SPMV,
    ],
    "gsparse/kernels/gpu/__init__.py": [("    row_pattern,\n)", "    padded,\n    row_pattern,\n)"), _IN_ALL],
}
# New files: the file that they are made like, and what is replaced in it.
NEW: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "gsparse/formats/padded.py": (
        "gsparse/formats/ellpack.py",
        [
            ("Ellpack", "Padded"),
            ("ELLPACK", "PADDED"),
            ('"ellpack"', '"padded"'),
            ('"ellpack_columns"', '"padded_columns"'),
            ("structure.ellpack_columns", 'structure.cached("padded_columns", lambda: structure.ellpack_columns)'),
        ],
    ),
    "gsparse/kernels/cpu/spmv_padded.py": (
        "gsparse/kernels/cpu/spmv_ellpack.py",
        [("def ellpack(", "def padded("), ('"ellpack"', '"padded"'), ("Ellpack", "Any"), ("BlockedAny, Any", "Csr")],
    ),
    "gsparse/kernels/gpu/src/spmv_padded.cu": (
        "gsparse/kernels/gpu/src/spmv_ellpack.cu",
        [("GS_KERNEL ellpack(", "GS_KERNEL padded(")],
    ),
}
USE = """
import numpy as np
import scipy.sparse as sp
import gsparse
from gsparse.kernels import cpu, gpu
from gsparse.kernels.gpu.catalogue import instantiations

S = sp.random_array((60, 50), density=0.2, rng=np.random.default_rng(0), format="csr")
A = gsparse.GpuSparseMatrix(S, device="cpu", format="padded")
x = np.arange(50.0)
assert np.allclose(A @ x, S @ x)
assert type(A.stored).__name__ == "Padded" and "padded" in gsparse.FORMATS
assert "padded_columns" in vars(A._prepared()[0].structure)
assert "padded" in gsparse.GpuSparseMatrix(S, device="cpu", expected_products=10**9).plan.__str__()
for backend in (cpu, gpu):
    assert set(backend.SPMV) <= set(backend.__all__) and backend.padded is backend.SPMV["padded"]
assert any(source == "spmv_padded.cu" and name.startswith("padded<") for source, name in instantiations(32))
print(gsparse.__file__)
"""


def edited(text: str, edits: list[tuple[str, str]], *, times: int | None) -> str:
    for old, new in edits:
        assert text.count(old) == times or (times is None and old in text), old
        text = text.replace(old, new)
    return text


def test_the_checklist_names_exactly_the_files_that_a_format_takes() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    section = page.partition("## Add a storage format\n")[2].partition("A format can")[0]
    steps = [" ".join(step.split()) for step in re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]]
    named = {name for step in steps for name in re.findall(r"`(gsparse/[\w/.]+\.\w+)`", step)}
    explains = {"gsparse/formats/registry.py", "gsparse/products/structure.py"}
    assert named - explains == {*EDITS, *(like for like, _ in NEW.values())}
    assert "A format takes eight source files" in section
    assert len(EDITS) + len(NEW) == 8


@pytest.mark.whole
def test_a_format_that_is_added_with_these_files_multiplies(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gsparse", tmp_path / "gsparse", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (like, edits) in NEW.items():
        (tmp_path / name).write_text(edited((ROOT / like).read_text(), edits, times=None))
    for name, edits in EDITS.items():
        (tmp_path / name).write_text(edited((ROOT / name).read_text(), edits, times=1))
    done = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path)
