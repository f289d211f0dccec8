"""SciPy's own tests, from the installed SciPy, with GpuSparseMatrix in place of csr_array.

There are two ways to bring it in. Tests of the container see GpuSparseMatrix under the name csr_array. Tests of functions
see each function of `CONVERTED` with its sparse arguments made GpuSparseMatrix first, so that whatever format a test
builds, the function works on ours.
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

import scipy.sparse.csgraph
import scipy.sparse.linalg

from gsparse import GpuSparseMatrix
from tests.scipy_suite.converting import converting

__all__ = ["SUITES", "Suite", "converted_functions", "load", "scipys_tests"]


@dataclass(frozen=True)
class Suite:
    """One of SciPy's test modules.

    Attributes
    ----------
    module : str
    minimum : int
        Test functions and methods that it has to hold, parameters not counted: fewer means that we lost some.
    witness : str
        A test of it without arguments that works on a matrix of ours: see test_the_suites.py.
    products : bool
        Whether the witness multiplies on the device (else it only makes matrices).
    container : bool
        Whether csr_array is replaced, or the functions.
    """

    module: str
    minimum: int
    witness: str
    products: bool = False
    container: bool = False


# Test file of this folder, less "test_" -> what it runs.
SUITES: dict[str, Suite] = {
}

PACKAGES = (scipy.sparse.linalg, scipy.sparse.csgraph)

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

CONVERTING = {
    (package.__name__, name): (getattr(package, name), converting(getattr(package, name)))
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
    replaced = mock.patch("scipy.sparse.csr_array", GpuSparseMatrix) if suite.container else converted_functions(everywhere=True)
    sys.modules[copied_name] = module
    with replaced:
        spec.loader.exec_module(module)
    for other in set(sys.modules) - before - {copied_name}:
        if ".tests." in other:
            del sys.modules[other]
    return module


def scipys_tests(name: str) -> dict[str, Any]:
    """Give what pytest has to find in tests/scipy_suite/test_<name>.py: tests, test classes, fixtures and marks."""
    suite = SUITES[name]
    names = vars(load(suite))
    tests = {n: value for n, value in names.items() if n.startswith("test_") and callable(value) and not _is_fixture(value)}
    classes = {n: value for n, value in names.items() if n.startswith("Test") and isinstance(value, type)}
    fixtures = {n: value for n, value in names.items() if _is_fixture(value)}
    count = len(tests) + sum(len([n for n in dir(c) if n.startswith("test_")]) for c in classes.values())
    assert count >= suite.minimum, f"{suite.module} has {count} tests, it had {suite.minimum}: how does it name them now?"
    return tests | classes | fixtures | {n: names[n] for n in ("pytestmark",) if n in names}


def _is_fixture(value: Any) -> bool:
    return hasattr(value, "_fixture_function") or hasattr(value, "_pytestfixturefunction")
