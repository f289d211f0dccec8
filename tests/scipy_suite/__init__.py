"""SciPy's own tests, from the installed SciPy, with GpuSparseMatrix in place of csr_array.

GpuSparseMatrix is substituted in two ways. Tests of the container import it under the name csr_array. Tests of
functions call each function of `CONVERTED` through a wrapper that first converts its sparse arguments to
GpuSparseMatrix, so that the function works on our class in whatever format the test built the matrix.

Suites whose names begin with "our" test functions of `gsparse.linalg` in place of SciPy's functions of the same names.
What cannot apply to them is listed with its reason in `Suite.exclusions`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest import mock

import pytest
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

import gsparse.linalg
from gsparse import GpuSparseMatrix
from tests.scipy_suite.converting import converting

__all__ = ["SUITES", "Suite", "load", "replaced", "scipys_tests"]


@dataclass(frozen=True)
class Suite:
    """One of SciPy's test modules.

    Attributes
    ----------
    module : str
    minimum : int
        Least number of test functions and methods, not counting parameters: fewer means that some were lost.
    witness : str
        If functions are replaced, a test that must use a matrix of our class: see test_the_suites.py.
    products : bool
        Whether the witness multiplies on the device, and does not only construct matrices.
    container : bool
        Whether csr_array is replaced, instead of functions.
    ours : tuple of str
        Functions of `scipy.sparse.linalg` that are replaced by those of `gsparse.linalg`.
    exclusions : dict
        Test classes, and methods of test classes, that do not apply, and why.
    """

    module: str
    minimum: int
    witness: str = ""
    products: bool = False
    container: bool = False
    ours: tuple[str, ...] = ()
    exclusions: dict[str, str] = field(default_factory=dict)


# The suite of each test file of this folder, by the file's name without "test_".
SUITES: dict[str, Suite] = {
    "arithmetic1d": Suite("scipy.sparse.tests.test_arithmetic1d", 18, container=True),
    "common1d": Suite("scipy.sparse.tests.test_common1d", 33, container=True),
    "csr": Suite("scipy.sparse.tests.test_csr", 9, container=True),
    "indexing1d": Suite("scipy.sparse.tests.test_indexing1d", 28, container=True),
    "minmax1d": Suite("scipy.sparse.tests.test_minmax1d", 5, container=True),
    "construct": Suite("scipy.sparse.tests.test_construct", 60, container=True),
    "extract": Suite("scipy.sparse.tests.test_extract", 4, container=True),
    "matrix_io": Suite("scipy.sparse.tests.test_matrix_io", 7, container=True),
    "isolve_iterative": Suite(
        "scipy.sparse.linalg._isolve.tests.test_iterative", 22, "TestGMRES.test_callback", products=True
    ),
    "gcrotmk": Suite("scipy.sparse.linalg._isolve.tests.test_gcrotmk", 7, "TestGCROTMK.test_cornercase", products=True),
    "lgmres": Suite("scipy.sparse.linalg._isolve.tests.test_lgmres", 8, "TestLGMRES.test_cornercase", products=True),
    "lsmr": Suite(
        "scipy.sparse.linalg._isolve.tests.test_lsmr", 15, "TestLSMRReturns.test_unchanged_x0", products=True
    ),
    "lsqr": Suite("scipy.sparse.linalg._isolve.tests.test_lsqr", 5, "test_well_conditioned_problems", products=True),
    "minres": Suite("scipy.sparse.linalg._isolve.tests.test_minres", 7, "test_minres_precond_exact_x0", products=True),
    "arpack": Suite(
        "scipy.sparse.linalg._eigen.arpack.tests.test_arpack", 19, "test_regression_arpackng_1315", products=True
    ),
    "lobpcg": Suite("scipy.sparse.linalg._eigen.lobpcg.tests.test_lobpcg", 20, "test_maxit", products=True),
    "svds": Suite(
        "scipy.sparse.linalg._eigen.tests.test_svds", 91, "Test_SVDS_PROPACK.test_svds_parameter_tol", products=True
    ),
    "expm_multiply": Suite(
        "scipy.sparse.linalg.tests.test_expm_multiply",
        18,
        "TestExpmActionSimple.test_sparse_expm_multiply",
        products=True,
    ),
    "funm_multiply_krylov": Suite(
        "scipy.sparse.linalg.tests.test_funm_multiply_krylov",
        8,
        "TestKrylovFunmv.test_funm_multiply_krylov_nonhermitian_sparse",
        products=True,
    ),
    "interface": Suite("scipy.sparse.linalg.tests.test_interface", 19, container=True),
    "matfuncs": Suite("scipy.sparse.linalg.tests.test_matfuncs", 34, "TestExpM.test_integer_matrix_2", products=True),
    "norm": Suite("scipy.sparse.linalg.tests.test_norm", 8, "TestNorm.test_matrix_norm", products=True),
    "onenormest": Suite("scipy.sparse.linalg.tests.test_onenormest", 6, "TestOnenormest.test_returns", products=True),
    "csgraph_connected_components": Suite(
        "scipy.sparse.csgraph.tests.test_connected_components", 8, "test_strong_connections"
    ),
    "csgraph_conversions": Suite("scipy.sparse.csgraph.tests.test_conversions", 3, "test_csgraph_to_dense"),
    "csgraph_flow": Suite("scipy.sparse.csgraph.tests.test_flow", 17, "test_raises_when_source_is_sink"),
    "csgraph_graph_laplacian": Suite(
        "scipy.sparse.csgraph.tests.test_graph_laplacian", 7, "test_symmetric_graph_laplacian"
    ),
    "csgraph_matching": Suite(
        "scipy.sparse.csgraph.tests.test_matching", 16, "test_min_weight_full_matching_large_infeasible"
    ),
    "csgraph_reordering": Suite("scipy.sparse.csgraph.tests.test_reordering", 3, "test_graph_structural_rank"),
    "csgraph_shortest_path": Suite("scipy.sparse.csgraph.tests.test_shortest_path", 30, "test_undirected_sparse_zero"),
    "csgraph_spanning_tree": Suite("scipy.sparse.csgraph.tests.test_spanning_tree", 1, "test_minimum_spanning_tree"),
    "csgraph_traversal": Suite("scipy.sparse.csgraph.tests.test_traversal", 6, "test_graph_depth_first_trivial_graph"),
    "our_arpack": Suite(
        "scipy.sparse.linalg._eigen.arpack.tests.test_arpack",
        19,
        "test_regression_arpackng_1315",
        ours=("eigs", "eigsh"),
    ),
    "our_svds": Suite(
        "scipy.sparse.linalg._eigen.tests.test_svds",
        91,
        "Test_SVDS_ARPACK.test_small_sigma2",
        ours=("svds",),
        exclusions={
            "Test_SVDS_LOBPCG": "expects the warnings of LOBPCG; our svds has one method",
            "Test_SVDS_PROPACK": "expects the limits and the errors of PROPACK; our svds has one method",
            "Test_SVDS_ARPACK.test_svds_parameter_tol": "expects the square of tol, which SciPy passes to ARPACK; "
            "our tol is the relative residual itself",
        },
    ),
    "our_expm_multiply": Suite(
        "scipy.sparse.linalg.tests.test_expm_multiply",
        18,
        "TestExpmActionSimple.test_sparse_expm_multiply",
        ours=("expm_multiply",),
    ),
    "our_norm": Suite("scipy.sparse.linalg.tests.test_norm", 8, "TestNorm.test_matrix_norm", ours=("norm",)),
    "our_onenormest": Suite(
        "scipy.sparse.linalg.tests.test_onenormest",
        6,
        "TestOnenormest.test_returns",
        ours=("onenormest",),
        exclusions={"TestAlgorithm_2_2": "tests a private function of SciPy, with random numbers"},
    ),
    "our_linsolve": Suite(
        "scipy.sparse.linalg._dsolve.tests.test_linsolve",
        43,
        "TestLinsolve.test_bvector_smoketest",
        ours=("factorized", "splu", "spsolve", "spsolve_triangular"),
        exclusions={
            "TestFactorized.test_cannot_factorize_nonsquare_matrix_without_umfpack": "expects SciPy's message",
            "TestFactorized.test_call_with_incorrectly_sized_matrix_without_umfpack": "expects SciPy's messages",
            "TestFactorized.test_call_with_cast_to_complex_without_umfpack": "our real factors solve for complex b",
            "TestSplu.test_lu_refcount": "counts references to SciPy's object",
            "TestSplu.test_bad_inputs": "expects an error for complex b, for which our real factors solve",
        },
    ),
}

# Public functions that take a sparse array, by the package that has them.
CONVERTED: dict[ModuleType, tuple[str, ...]] = {
    scipy.sparse.linalg: (
        *("cg", "cgs", "bicg", "bicgstab", "gmres", "lgmres", "gcrotmk", "minres", "qmr", "tfqmr", "lsqr", "lsmr"),
        *("eigsh", "eigs", "svds", "lobpcg", "expm_multiply", "funm_multiply_krylov", "onenormest", "norm"),
        *("spsolve", "inv", "expm", "aslinearoperator", "matrix_power"),
    ),
    scipy.sparse.csgraph: tuple(
        name
        for name in scipy.sparse.csgraph.__all__
        # These take dense arrays or masked ones, or raise.
        if name not in ("NegativeCycleError", "csgraph_from_dense", "csgraph_from_masked", "csgraph_masked_from_dense")
    ),
}

# The classes of matrices that are converted. Of graph functions, it is csr_array alone, because their tests ask what
# each format does: that CSC is refused, that COO is written in place, that csr_matrix gives csr_matrix.
KINDS: dict[ModuleType, tuple[type, ...]] = {
    scipy.sparse.linalg: (scipy.sparse.sparray, scipy.sparse.spmatrix),
    scipy.sparse.csgraph: (scipy.sparse.csr_array,),
}

# By package and name of a function of SciPy: the function, and what takes its place.
Replacements = dict[tuple[str, str], tuple[Any, Any]]

CONVERTING: Replacements = {
    (package.__name__, name): (getattr(package, name), converting(getattr(package, name), KINDS[package]))
    for package, names in CONVERTED.items()
    for name in names
}
OURS: Replacements = {
    (scipy.sparse.linalg.__name__, name): (
        getattr(scipy.sparse.linalg, name),
        converting(getattr(gsparse.linalg, name), KINDS[scipy.sparse.linalg]),
    )
    for suite in SUITES.values()
    for name in suite.ours
}


@contextlib.contextmanager
def replaced_functions(replacements: Replacements, *, everywhere: bool = False) -> Iterator[None]:
    """Replace SciPy's functions within the block.

    Parameters
    ----------
    replacements : dict
    everywhere : bool
        Replace them in the private modules that tests import from, too. Use it only while a test module is being
        imported: SciPy's functions would otherwise call one another through the converting ones.
    """
    with contextlib.ExitStack() as stack:
        for (package, name), (original, replacement) in replacements.items():
            for module in list(sys.modules):
                private = everywhere and module.startswith(f"{package}.") and ".tests" not in module
                if (private or module == package) and vars(sys.modules[module]).get(name) is original:
                    stack.enter_context(mock.patch.object(sys.modules[module], name, replacement))
        yield


def replaced(suite: Suite, *, everywhere: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Replace SciPy's class or functions by ours within the block, as the suite needs."""
    if suite.container:
        return mock.patch("scipy.sparse.csr_array", GpuSparseMatrix)
    if suite.ours:
        ours = {key: value for key, value in OURS.items() if key[1] in suite.ours}
        return replaced_functions(ours, everywhere=everywhere)
    return replaced_functions(CONVERTING, everywhere=everywhere)


def load(suite: Suite) -> ModuleType:
    """Import a copy of a SciPy test module that uses our class or functions.

    Test modules that it imports are removed from `sys.modules` afterwards.
    """
    original = importlib.util.find_spec(suite.module)
    assert original is not None and original.origin is not None, f"the installed SciPy has no {suite.module}"
    package, _, name = suite.module.rpartition(".")
    copied_name = f"{package}.gsparse_copy_of_{name}"  # in the package, for its relative imports
    spec = importlib.util.spec_from_file_location(copied_name, original.origin)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.modules[copied_name] = module
    with replaced(suite, everywhere=True):
        spec.loader.exec_module(module)
    for other in set(sys.modules) - before - {copied_name}:
        if ".tests." in other:
            del sys.modules[other]
    return module


def scipys_tests(name: str) -> dict[str, Any]:
    """Return the contents of tests/scipy_suite/test_<name>.py: tests, test classes, fixtures and marks."""
    suite = SUITES[name]
    names = vars(load(suite))
    tests = {
        n: value for n, value in names.items() if n.startswith("test") and callable(value) and not _is_fixture(value)
    }
    classes = {n: value for n, value in names.items() if n.startswith("Test") and isinstance(value, type)}
    fixtures = {n: value for n, value in names.items() if _is_fixture(value)}
    count = len(tests) + sum(len([n for n in dir(c) if n.startswith("test")]) for c in classes.values())
    assert not suite.container or names.get("csr_array", GpuSparseMatrix) is GpuSparseMatrix
    assert count >= suite.minimum, (
        f"{suite.module} has {count} tests, it had {suite.minimum}: how does it name them now?"
    )
    for excluded, reason in suite.exclusions.items():
        holder, _, method = excluded.partition(".")
        if method:
            setattr(classes[holder], method, pytest.mark.skip(reason=reason)(getattr(classes[holder], method)))
        else:
            classes.pop(holder, None)  # a class of a private function may be gone in another release of SciPy
    return tests | classes | fixtures | {n: names[n] for n in ("pytestmark",) if n in names}


def _is_fixture(value: Any) -> bool:
    return hasattr(value, "_fixture_function") or hasattr(value, "_pytestfixturefunction")
