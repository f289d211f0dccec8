"""The registry of storage formats: one object per format, also from outside the package, and no names elsewhere."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gsparse
from gsparse import GpuSparseMatrix
from gsparse.device.base import Device
from gsparse.errors import FormatError
from gsparse.formats.costs import KernelModel
from gsparse.formats.registry import (
    REGISTRY,
    AnalysisLevel,
    Storage,
    StorageFormat,
    choices,
    find_format,
    name_of,
    names_of,
    register,
    unregister,
)
from gsparse.products.csr import CsrRows
from gsparse.products.row_pattern import MAX_PATTERNS
from gsparse.products.storage import MatrixPreparation
from gsparse.products.structure import Part, Structure, releasable
from tests.support import assert_product, from_lengths, random_values

NAMES = gsparse.FORMATS[1:]
SCHEDULES = {"scalar": "csr_scalar", "vector": "csr_vector"}


# ------------------------------------------------------------------------------------ a format from outside the package


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Diagonal storage: ``values[d, i]`` is the entry of row i and column ``i + offsets[d]``."""

    shape: tuple[int, int]
    nnz: int
    offsets: Any
    values: Any

    @property
    def nbytes(self) -> int:
        return int(self.offsets.nbytes + self.values.nbytes)


class DiagonalOffsets(Part):
    @releasable
    def offsets(self) -> Any:
        """The offsets of all diagonals with entries, an array that matrices with other values share."""
        csr = self.sparsity.csr
        return np.unique(csr.indices - np.repeat(np.arange(csr.num_rows), np.diff(csr.indptr)))


def describe_diagonals(matrix: MatrixPreparation, level: AnalysisLevel) -> Storage | None:
    if not (level and has_few_diagonals(matrix.structure)):
        return None
    size = matrix.structure.part(DiagonalOffsets).offsets.size * matrix.csr.num_rows
    return Storage("offsets", str(matrix.plain_values.dtype), size, size * matrix.plain_values.dtype.itemsize)


def has_few_diagonals(structure: Structure) -> bool:
    return bool(structure.part(DiagonalOffsets).offsets.size <= 9)


def build_diagonals(matrix: MatrixPreparation) -> Diagonals:
    csr, offsets, entries = matrix.csr, matrix.structure.part(DiagonalOffsets).offsets, matrix.csr.data
    rows = np.repeat(np.arange(csr.num_rows), np.diff(csr.indptr))
    values = np.zeros((offsets.size, csr.num_rows), entries.dtype)
    np.add.at(values, (np.searchsorted(offsets, csr.indices - rows), rows), entries)
    return Diagonals(csr.shape, csr.nnz, offsets, values)


def bind_diagonals(device: Any, matrix: Diagonals, dtype: Any, launch: Any) -> Any:
    def multiply(x: Any, y: Any, alpha: Any, beta: Any, conjugate: bool) -> None:
        y[...] = beta * y if beta else 0
        for offset, values in zip(matrix.offsets, matrix.values, strict=True):
            rows = np.arange(max(0, -offset), min(matrix.shape[0], matrix.shape[1] - offset))
            y[rows] += alpha * (values.conj() if conjugate else values)[rows] * x[rows + offset]

    return multiply


DIAGONALS = StorageFormat(
    name="diagonals",
    layout="diagonals",
    fits=lambda stats: stats.num_rows < 2**31,
    accepts=has_few_diagonals,
    requirement="it stores at most 9 diagonals",
    describe=describe_diagonals,
    build=build_diagonals,
    parts=(DiagonalOffsets,),
    costs={"cpu": KernelModel(fixed=1e-9, byte=1e-16, setup=1.0)},
    kernels={"cpu": bind_diagonals},
)


@pytest.fixture
def diagonals() -> Iterator[StorageFormat]:
    yield register(DIAGONALS)
    unregister("diagonals")


@pytest.fixture
def banded(rng: np.random.Generator) -> sp.csr_array:
    parts = [random_values(rng, 40_000, float) for _ in range(4)]
    return sp.csr_array(sp.diags_array(parts, offsets=[-7, 0, 1, 30], shape=(40_000, 40_000)))


def test_a_format_from_outside_multiplies_by_its_name(diagonals: Any, banded: Any, rng: np.random.Generator) -> None:
    A = GpuSparseMatrix(banded, device="cpu", format="diagonals")
    x = random_values(rng, 40_000, float)
    assert_product(A @ x, banded, x)
    assert_product(A.T @ x, sp.csr_array(banded.T), x)
    assert isinstance(A.stored, Diagonals)
    part = A._prepared()[0].structure.part(DiagonalOffsets)
    assert vars(part)["offsets"].tolist() == [-7, 0, 1, 30]
    doubled = 2 * A
    assert_product(doubled @ x, 2 * banded, x)
    assert doubled.stored.offsets is A.stored.offsets  # an array of the shared structure
    A.release()
    assert "offsets" not in vars(part)


def test_auto_considers_a_format_from_outside(diagonals: Any, banded: Any, rng: np.random.Generator) -> None:
    A = GpuSparseMatrix(banded, device="cpu", expected_products=10_000)
    assert A.plan.format == "diagonals"
    assert [line.split()[:3] for line in str(A.plan).splitlines() if "→" in line] == [["→", "diagonals", "offsets"]]
    x = random_values(rng, 40_000, float)
    assert_product(A @ x, banded, x)
    scattered = sp.csr_array(sp.random_array((300, 300), density=0.1, rng=rng))
    plan = GpuSparseMatrix(scattered, device="cpu", expected_products=10**9).plan
    assert "diagonals" not in {c.format for c in plan.candidates}


def test_an_unregistered_format_is_unknown(banded: Any) -> None:
    register(DIAGONALS)
    A = GpuSparseMatrix(banded, device="cpu", format="diagonals")
    before = A @ np.ones(40_000)
    unregister("diagonals")
    np.testing.assert_array_equal(A @ np.ones(40_000), before)
    with pytest.raises(FormatError, match="unknown format 'diagonals'"):
        GpuSparseMatrix(banded, device="cpu", format="diagonals")
    assert names_of() == NAMES


def test_a_format_is_offered_only_where_it_has_kernels(diagonals: Any, device: Device, banded: Any) -> None:
    if device.kind == "cpu":
        assert GpuSparseMatrix(banded, device=device, format="diagonals").plan.format == "diagonals"
        return
    with pytest.raises(FormatError, match=r"diagonals has no kernel .*\(gpu\)"):
        GpuSparseMatrix(banded, device=device, format="diagonals")
    plan = GpuSparseMatrix(banded, device=device, expected_products=10_000).plan
    assert "diagonals" not in {c.format for c in plan.candidates}


@pytest.mark.parametrize("name", ["auto", "csr", "csr_vector", "row_pattern"])
def test_a_name_cannot_be_registered_twice(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}.*another name"):
        register(replace(DIAGONALS, name=name))
    assert names_of() == NAMES


# -------------------------------------------------------------------------------------------------- names and schedules


def test_no_module_names_a_format_besides_its_own_file_and_kernels() -> None:
    """Other files must ask the registry: a string that equals a name would be a special case for one format."""
    package = Path(gsparse.__file__).parent
    exempt = {
        package / "bench" / "claims.py",  # quotes publications that use these names
        package / "files" / "checks.py",  # names SciPy's classes
        package / "linalg" / "multigrid" / "options.py",  # names SciPy's classes
    }
    named = [
        f"{path.relative_to(package)}:{node.lineno}: {node.value}"
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "kernels" and path not in exempt
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in NAMES
        if path != package / "products" / f"{find_format(node.value).layout}.py"
    ]
    assert named == []


def test_formats_are_listed_in_the_order_of_the_registry() -> None:
    assert ("auto", *REGISTRY) == gsparse.FORMATS
    assert [format.name for format in choices("auto")] == [*NAMES]
    assert [format.name for format in choices("csr")] == [*SCHEDULES.values()]
    assert choices("csr_vector") == (find_format("csr_vector"),)
    assert names_of(layout="csr", schedule="vector") == ("csr_vector",)
    assert {format.layout for format in REGISTRY.values()} == {
        "csr",
        "ellpack",
        "blocked_ellpack",
        "row_lanes",
        "row_pattern",
        "bsr",
    }


def test_formats_share_parts_only_within_csr() -> None:
    parts = {name: set(format.parts) for name, format in REGISTRY.items()}
    assert all(parts.values())
    csr = {name for name in NAMES if CsrRows in parts[name]}
    assert csr == set(names_of(reads_csr=True)) == set(SCHEDULES.values())
    for one, other in combinations((name for name in NAMES if name not in csr), 2):
        assert not parts[one] & parts[other]
    assert names_of(only_compressed=True) == ("row_pattern",)


def test_names_consist_of_layout_and_schedule() -> None:
    assert [name_of("csr", schedule) for schedule in SCHEDULES] == [*SCHEDULES.values()]
    assert [name_of(name, None) for name in ("auto", "csr", *NAMES)] == ["auto", "csr", *NAMES]


def test_names_that_sort_before_auto_are_names_like_others() -> None:
    register(replace(DIAGONALS, name="aa_even", layout="aa", schedule="even"))
    try:
        assert name_of("aa", "even") == "aa_even"
        assert names_of(layout="aa") == ("aa_even",)
    finally:
        unregister("aa_even")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_csr_takes_a_schedule(device: Device, schedule: str, rng: np.random.Generator) -> None:
    S = from_lengths(np.full(100, 5), 80, rng)
    A = GpuSparseMatrix(S, device=device, format="csr", schedule=schedule)
    assert (A.plan.format, A.plan.reason) == (SCHEDULES[schedule], "named by the caller")
    assert GpuSparseMatrix(S, device=device, format=SCHEDULES[schedule]).plan == A.plan
    assert GpuSparseMatrix(S, device=device, format=SCHEDULES[schedule], schedule=schedule).plan == A.plan


@pytest.mark.parametrize("products", [1, 1000, 10**9])
def test_csr_without_a_schedule_uses_the_best_one(device: Device, products: int, rng: np.random.Generator) -> None:
    S = from_lengths(np.full(300, 7), 280, rng)
    plan = GpuSparseMatrix(S, device=device, format="csr", expected_products=products).plan
    assert {c.format for c in plan.candidates} == set(SCHEDULES.values())
    best = min(plan.candidates, key=lambda c: c.seconds + c.setup_seconds / products)
    assert plan.chosen == best
    assert f"by the time of {products} products" in plan.reason
    x = random_values(rng, 280, float)
    assert_product(GpuSparseMatrix(S, device=device, format="csr", expected_products=products) @ x, S, x)


REFUSED = {
    "unknown schedule": ({"format": "csr", "schedule": "fast"}, "no schedule 'fast': use 'scalar' or 'vector'$"),
    "two schedules": ({"format": "csr_vector", "schedule": "scalar"}, "no schedule 'scalar': use 'vector'"),
    "layout without schedules": ({"format": "ellpack", "schedule": "vector"}, "no schedule.*out, or use format='csr'"),
    "no format": ({"schedule": "vector"}, "format='auto' has no schedule 'vector': .*format='csr'"),
    "unknown layout": ({"format": "coo", "schedule": "vector"}, "unknown format 'coo': use one of auto, csr_scalar"),
    "a list": ({"format": ["csr"]}, "unknown format"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_schedule_that_a_layout_does_not_have_is_refused(case: str) -> None:
    options, words = REFUSED[case]
    with pytest.raises(FormatError, match=words):
        GpuSparseMatrix(sp.eye_array(3, format="csr"), device="cpu", **options)


def test_a_copy_inherits_the_schedule_until_it_asks_for_another() -> None:
    A = GpuSparseMatrix(sp.eye_array(9, format="csr"), device="cpu", format="csr", schedule="scalar")
    assert GpuSparseMatrix(A).plan.format == A.copy().plan.format == pickle.loads(pickle.dumps(A)).plan.format
    assert GpuSparseMatrix(A, format="csr", schedule="vector").plan.format == "csr_vector"
    assert A.plan.format == "csr_scalar"


# ----------------------------------------------------------------------------------- formats that a matrix does not fit


@pytest.fixture
def irregular(rng: np.random.Generator) -> sp.csr_array:
    """Make a matrix with too many distinct rows for row patterns."""
    return from_lengths(np.full(MAX_PATTERNS + 500, 4), 3000, rng)


def test_the_constructor_refuses_a_format_that_the_matrix_does_not_fit(device: Device, irregular: Any) -> None:
    words = "^row_pattern does not fit this matrix: .*distinct rows"
    with pytest.raises(FormatError, match=words):
        GpuSparseMatrix(irregular, device=device, format="row_pattern")
    with pytest.raises(FormatError, match=words):
        GpuSparseMatrix(GpuSparseMatrix(irregular, device=device), format="row_pattern")
    assert GpuSparseMatrix(sp.eye_array(40), device=device, format="row_pattern").plan.format == "row_pattern"


def test_a_format_is_refused_only_if_it_cannot_store_the_matrix(irregular: Any, rng: np.random.Generator) -> None:
    all_different = from_lengths(np.full(3000, 4), 3000, rng)
    A = GpuSparseMatrix(all_different, device="cpu", format="row_pattern")
    assert A.stored.num_patterns == 3000  # as many as there are rows: no gain, but it was asked for
    assert A.plan.reason == "named by the caller"
    with pytest.raises(FormatError, match=f"at most {MAX_PATTERNS} distinct rows .*: use blocked_ellpack, or leave"):
        GpuSparseMatrix(irregular, device="cpu", format="row_pattern")


def test_results_that_do_not_fit_an_inherited_format_use_auto(
    device: Device, irregular: Any, rng: np.random.Generator
) -> None:
    n = MAX_PATTERNS + 500
    S = sp.csr_array(sp.eye_array(n, 3000))
    A = GpuSparseMatrix(S, device=device, format="row_pattern")
    x = random_values(rng, 3000, float)
    total, expected = A + irregular, sp.csr_array(S + irregular)
    assert_product(total @ x, expected, x)
    assert total.plan.format != "row_pattern"
    assert (2 * A).plan.format == A[10:50].plan.format == "row_pattern"
    again = pickle.loads(pickle.dumps(total))
    assert again.plan.format != "row_pattern"
    assert_product(again @ x, expected, x)


def test_a_matrix_that_no_longer_fits_its_format_uses_auto(device: Device, irregular: Any) -> None:
    A = GpuSparseMatrix(sp.csr_array(sp.eye_array(*irregular.shape)), device=device, format="row_pattern")
    assert A.plan.format == "row_pattern"
    A += irregular
    assert A.plan.format != "row_pattern"


def test_a_format_for_a_dtype_of_the_host_is_refused() -> None:
    with pytest.raises(FormatError, match=r"float128|longdouble"):
        GpuSparseMatrix(sp.eye_array(5, dtype=np.longdouble), device="cpu", format="row_pattern")
    A = GpuSparseMatrix(sp.eye_array(5, dtype=np.longdouble), device="cpu")
    np.testing.assert_array_equal(A @ np.ones(5, np.longdouble), np.ones(5))


@pytest.mark.parametrize("index", ["int32", "int64"])
def test_a_plan_points_out_needless_indices_of_int64(device: Device, index: str) -> None:
    S = sp.random_array((60, 60), density=0.2, format="csr", rng=np.random.default_rng(0))
    S.indices, S.indptr = S.indices.astype(index), S.indptr.astype(index)
    plan = GpuSparseMatrix(S, device=device).plan
    assert ("its indices are of int64" in plan.reason) is (index == "int64")
