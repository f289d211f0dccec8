"""SciPy's own tests, from the installed SciPy, with GpuSparseMatrix in place of csr_array.

There are two ways to bring it in. Tests of the container see GpuSparseMatrix under the name csr_array. Tests of
functions see each function of `CONVERTED` with its sparse arguments made GpuSparseMatrix first, so that whatever format
a test builds, the function works on ours.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

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
        Test functions and methods that it has to hold, parameters not counted: fewer means that we lost some.
    witness : str
        Where functions are replaced, a test that has to work on a matrix of ours: see test_the_suites.py.
    products : bool
        Whether the witness multiplies on the device (else it only makes matrices).
    container : bool
        Whether csr_array is replaced, not functions.
    """

    module: str
    minimum: int
    witness: str = ""
    products: bool = False
    container: bool = False


# Test file of this folder, less "test_" -> what it runs.
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

# The graph functions' tests ask what each format does: that CSC is refused, that COO is written in place, that
# csr_matrix gives csr_matrix.
KINDS: dict[ModuleType, tuple[type, ...]] = {
    scipy.sparse.linalg: (scipy.sparse.sparray, scipy.sparse.spmatrix),
    scipy.sparse.csgraph: (scipy.sparse.csr_array,),
}

CONVERTING = {
    (package.__name__, name): (getattr(package, name), converting(getattr(package, name), KINDS[package]))
    for package, names in CONVERTED.items()
    for name in names
}


@contextlib.contextmanager
def converted_functions(*, everywhere: bool = False) -> Iterator[None]:
    """Replace SciPy's functions by the converting ones within the block.

    Parameters
    ----------
    everywhere : bool
        In the private modules that tests import from, too: only while a test module is being imported, else SciPy's
        functions would call one another through us.
    """
    with contextlib.ExitStack() as stack:
        for (package, name), (original, replacement) in CONVERTING.items():
            for found in list(sys.modules):
                private = everywhere and found.startswith(f"{package}.") and ".tests" not in found
                if (private or found == package) and vars(sys.modules[found]).get(name) is original:
                    stack.enter_context(mock.patch.object(sys.modules[found], name, replacement))
        yield


def replaced(suite: Suite, *, everywhere: bool = False) -> contextlib.AbstractContextManager[Any]:
    """Bring ours in for a suite within the block."""
    if suite.container:
        return mock.patch("scipy.sparse.csr_array", GpuSparseMatrix)
    return converted_functions(everywhere=everywhere)


def load(suite: Suite) -> ModuleType:
    """Import a copy of a SciPy test module that sees ours; modules of tests that it imports are forgotten again."""
    found = importlib.util.find_spec(suite.module)
    assert found is not None and found.origin is not None, f"the installed SciPy has no {suite.module}"
    package, _, name = suite.module.rpartition(".")
    copied_name = f"{package}.gsparse_copy_of_{name}"  # in the package, for its relative imports
    spec = importlib.util.spec_from_file_location(copied_name, found.origin)
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
    """Give what pytest has to find in tests/scipy_suite/test_<name>.py: tests, test classes, fixtures and marks."""
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
    return tests | classes | fixtures | {n: names[n] for n in ("pytestmark",) if n in names}


def _is_fixture(value: Any) -> bool:
    return hasattr(value, "_fixture_function") or hasattr(value, "_pytestfixturefunction")
