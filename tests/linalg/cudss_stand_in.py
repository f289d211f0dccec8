"""A stand-in for `nvmath.bindings.cudss` 1.0 with cuDSS 0.8 or 1.0, so that our calls can be tested without a GPU.

It has the functions that we call, with the same numbers of arguments. As in the compiled module, the arguments are
integers, except for one file name. Arrays are read and written through their addresses in host memory. A call that
cuDSS would not accept (a handle that was released, a phase too early, arrays of other types) raises an error, and so
does each call that a test wants to fail. `tests/linalg/test_cudss.py` compares its enumerations with those of the real
module where that is installed.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from functools import partial, update_wrapper
from itertools import count
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as la

__all__ = ["StandIn"]


Phase = IntEnum("Phase", {"ANALYSIS": 3, "FACTORIZATION": 4, "REFACTORIZATION": 8, "SOLVE": 1008})
_CONFIG = {"MATCHING_ALG": 3, "SOLVE_MODE": 4, "IR_N_STEPS": 5, "HOST_NTHREADS": 14, "DETERMINISTIC_MODE": 24}
ConfigParam = IntEnum("ConfigParam", _CONFIG)
_DATA = {"INFO": 0, "LU_NNZ": 1, "NPIVOTS": 2, "INERTIA": 3, "DIAG": 8, "MEMORY_ESTIMATES": 13}
DataParam = IntEnum("DataParam", {**_DATA, "SCALE_ROW": 15, "SCALE_COL": 16})
MatchingAlg = IntEnum("MatchingAlg", {"NONE": 0, "MAX_DIAG_PRODUCT": 5})
DataType = IntEnum("DataType", {"R_32F": 0, "R_64F": 1, "C_32F": 4, "C_64F": 5, "R_32I": 10, "R_64I": 24})
MatrixType = IntEnum("MatrixType", {"GENERAL": 0, "SYMMETRIC": 1, "HERMITIAN": 2, "SPD": 3, "HPD": 4})
MatrixViewType = IntEnum("MatrixViewType", {"FULL": 0})
IndexBase = IntEnum("IndexBase", {"ZERO": 0})
Layout = IntEnum("Layout", {"COL_MAJOR": 0})
_ERRORS = {"ALLOC_FAILED": 2, "INVALID_VALUE": 3, "NOT_SUPPORTED": 4, "EXECUTION_FAILED": 5, "INTERNAL_ERROR": 6}
Status = IntEnum("Status", _ERRORS)


class cuDSSError(Exception):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"{Status(status).name} ({status})")


_DTYPES = dict(zip(DataType, ("float32", "float64", "complex64", "complex128", "int32", "int64"), strict=True))
# A parameter of cuDSS 1.0 that the bindings do not name.
_FORCE_NONSYMMETRIC_MATCHING = 27
# A pivot that is smaller than this, relative to the largest entry of the matrix, is replaced.
_SMALL_PIVOT = {"float32": 1e-5, "float64": 1e-13, "complex64": 1e-5, "complex128": 1e-13}


def _at(address: int, size: int, dtype: Any) -> Any:
    """Return the array at an address."""
    dtype = np.dtype(dtype)
    assert address, "a null pointer"
    return np.frombuffer((ctypes.c_char * (size * dtype.itemsize)).from_address(address), dtype)


class StandIn:
    """The module `nvmath.bindings.cudss`.

    Parameters
    ----------
    square_roots : bool
        Whether the diagonal of Cholesky's factors is that of L in L·Lᴴ, or of D in L·D·Lᴴ.
    version : tuple of int
        The version of cuDSS.

    Attributes
    ----------
    calls : list of tuple
        The names and the arguments of all calls.
    failing : dict
        By the name of a function or of a phase, the statuses with which its next calls fail.
    live : dict
        The objects that were made and not destroyed, by handle.
    """

    Phase, ConfigParam, DataParam, DataType = Phase, ConfigParam, DataParam, DataType
    MatchingAlg = MatchingAlg
    MatrixType, MatrixViewType, IndexBase, Layout, Status = MatrixType, MatrixViewType, IndexBase, Layout, Status
    cuDSSError = cuDSSError

    def __init__(self, *, square_roots: bool = True, version: tuple[int, int, int] = (0, 8, 0)) -> None:
        self.square_roots, self.version = square_roots, version
        self.calls: list[tuple[Any, ...]] = []
        self.failing: dict[str, list[int]] = {}
        self.live: dict[int, dict[str, Any]] = {}
        self._handles = count(1000)

    def __getattribute__(self, name: str) -> Any:
        """Record each call of a function of the bindings."""
        found = super().__getattribute__(name)
        is_data = name.startswith("_") or name == "number" or isinstance(found, type) or not callable(found)
        return found if is_data else update_wrapper(partial(self._call, name, found), found)

    def _call(self, name: str, function: Any, *args: Any) -> Any:
        assert all(type(a) in (int, str) or isinstance(a, IntEnum) for a in args), f"{name} takes integers: {args}"
        self.calls.append((name, *args))
        self._fail_if_wanted(name)
        return function(*args)

    def _fail_if_wanted(self, name: str) -> None:
        if self.failing.get(name):
            raise cuDSSError(self.failing[name].pop(0))

    def _make(self, kind: str, **values: Any) -> int:
        handle = next(self._handles)
        self.live[handle] = {"kind": kind, **values}
        return handle

    def _find(self, handle: int, kind: str) -> dict[str, Any]:
        assert handle in self.live, f"{kind} {handle} was destroyed or never made"
        assert self.live[handle]["kind"] == kind
        return self.live[handle]

    def _destroy(self, handle: int, kind: str) -> None:
        self._find(handle, kind)
        del self.live[handle]

    def number(self, name: str) -> int:
        """Return the number of calls of a function, or of executions of a phase."""
        return sum(
            call[0] == name or (call[0] == "execute" and name in Phase.__members__ and call[2] == Phase[name])
            for call in self.calls
        )

    # ----------------------------------------------------------------------------------------------------- handles

    def get_property(self, property_type: int) -> int:
        return self.version[property_type]

    def create(self) -> int:
        return self._make("handle", stream=None, layer=None)

    def destroy(self, handle: int) -> None:
        assert all(value.get("handle") != handle for value in self.live.values()), "data outlives its handle"
        self._destroy(handle, "handle")

    def config_create(self) -> int:
        return self._make("config", values={})

    def config_destroy(self, config: int) -> None:
        self._destroy(config, "config")

    def data_create(self, handle: int) -> int:
        self._find(handle, "handle")
        return self._make("data", handle=handle, analysed=False, factors=None)

    def data_destroy(self, handle: int, data: int) -> None:
        self._find(handle, "handle")
        self._destroy(data, "data")

    def set_stream(self, handle: int, stream: int) -> None:
        self._find(handle, "handle")["stream"] = stream

    def set_threading_layer(self, handle: int, file_name: str) -> None:
        assert isinstance(file_name, str)
        self._find(handle, "handle")["layer"] = file_name

    def set_async_workspace_allocator(self, handle: int, pool: int) -> bool:
        return True

    def config_set(self, config: int, parameter: int, address: int, num_bytes: int) -> None:
        assert num_bytes == 4
        if parameter == _FORCE_NONSYMMETRIC_MATCHING and self.version < (1,):
            raise cuDSSError(Status.INTERNAL_ERROR)
        is_known = parameter != _FORCE_NONSYMMETRIC_MATCHING
        name = ConfigParam(parameter).name if is_known else "FORCE_NONSYMMETRIC_MATCHING"
        self._find(config, "config")["values"][name] = int(_at(address, 1, np.int32)[0])

    # ---------------------------------------------------------------------------------------------------- matrices

    def matrix_create_csr(self, *args: int) -> int:
        nrows, ncols, nnz, row_start, row_end, col_indices, values = args[:7]
        offset_type, index_type, value_type, mtype, mview, index_base = args[7:]
        assert (nrows, row_end, mview, index_base) == (ncols, 0, MatrixViewType.FULL, IndexBase.ZERO)
        assert offset_type == index_type
        assert index_type in (DataType.R_32I, DataType.R_64I)
        value_dtype, index = np.dtype(_DTYPES[DataType(value_type)]), _DTYPES[DataType(index_type)]
        is_hermitian = MatrixType(mtype) in (MatrixType.HERMITIAN, MatrixType.HPD)
        assert not is_hermitian or value_dtype.kind == "c"
        assert mtype != MatrixType.SPD or value_dtype.kind == "f"
        return self._make(
            "csr", n=nrows, nnz=nnz, addresses=(row_start, col_indices, values), index=index, dtype=value_dtype,
            mtype=MatrixType(mtype),
        )  # fmt: skip

    def matrix_create_dn(self, nrows: int, ncols: int, ld: int, values: int, value_type: int, layout: int) -> int:
        assert ld >= nrows
        assert layout == Layout.COL_MAJOR
        return self._make("dense", n=nrows, columns=ncols, values=values, dtype=np.dtype(_DTYPES[DataType(value_type)]))

    def matrix_set_values(self, matrix: int, values: int) -> None:
        self._find(matrix, "dense")["values"] = values

    def matrix_destroy(self, matrix: int) -> None:
        assert self.live[matrix]["kind"] in ("csr", "dense")
        del self.live[matrix]

    # ------------------------------------------------------------------------------------------------------ phases

    def execute(self, handle: int, phase: int, config: int, data: int, matrix: int, solution: int, rhs: int) -> None:
        assert self._find(handle, "handle")["stream"] is not None, "no stream was set"
        name = Phase(phase).name
        self._fail_if_wanted(name)
        state, csr = self._find(data, "data"), self._find(matrix, "csr")
        x, b = self._find(solution, "dense"), self._find(rhs, "dense")
        assert (x["n"], x["columns"], x["dtype"]) == (b["n"], b["columns"], b["dtype"])
        assert (x["n"], x["dtype"]) == (csr["n"], csr["dtype"])
        values = self._find(config, "config")["values"]
        assert name == "SOLVE" or not values.get("SOLVE_MODE"), "the mode is for solves only"
        if name == "ANALYSIS":
            state.update(analysed=True, factors=None)
        elif name in ("FACTORIZATION", "REFACTORIZATION"):
            if not state["analysed"] or (name == "REFACTORIZATION" and state["factors"] is None):
                raise cuDSSError(Status.INVALID_VALUE)
            matching = bool(values.get("MATCHING_ALG", self.version >= (1,)))
            is_forced = self.version < (1,) or csr["mtype"] == MatrixType.GENERAL
            assert not matching or is_forced or values["FORCE_NONSYMMETRIC_MATCHING"], "the matching is symmetric"
            self._factorize(state, csr, matching)
        else:
            if state["factors"] is None:
                raise cuDSSError(Status.INVALID_VALUE)
            assert not (values.get("DETERMINISTIC_MODE") and x["columns"] > 1), "deterministic mode takes one column"
            size, dtype = x["n"] * x["columns"], x["dtype"]
            right = _at(b["values"], size, dtype).reshape(x["columns"], x["n"]).T
            mode, scales = "NTH"[values.get("SOLVE_MODE", 0)], state["scales"][:, None]
            assert mode == "N" or self.version >= (1,), "cuDSS 0.8 ignores the mode"
            if mode == "H" and dtype.kind != "c":
                raise cuDSSError(Status.NOT_SUPPORTED)
            right = right if mode == "N" else right * scales  # the factors are those of A·diag(scales)
            solution = state["factors"].solve(np.asfortranarray(right), mode)
            solution = solution * scales if mode == "N" else solution
            _at(x["values"], size, dtype)[:] = solution.T.reshape(-1)

    def _factorize(self, state: dict[str, Any], csr: dict[str, Any], matching: bool) -> None:
        n, nnz = csr["n"], csr["nnz"]
        rows, columns, values = csr["addresses"]
        arrays = _at(values, nnz, csr["dtype"]), _at(columns, nnz, csr["index"]), _at(rows, n + 1, csr["index"])
        S = sp.csr_array(arrays, shape=(n, n))
        wide = S.astype(np.result_type(S.dtype, np.float64))
        if csr["mtype"] in (MatrixType.SPD, MatrixType.HPD):
            # Only one triangle is read.
            wide = sp.csr_array(sp.tril(wide) + sp.tril(wide, -1).conj().T)
            values_of = np.linalg.eigvalsh(wide.toarray())
            state["info"] = 0 if values_of.min() > 0 else 1 + int((values_of > 0).sum())
        elif csr["mtype"] == MatrixType.GENERAL:
            state["info"] = 0
        else:
            mirror = sp.tril(wide, -1).T
            wide = sp.csr_array(sp.tril(wide) + (mirror.conj() if csr["mtype"] == MatrixType.HERMITIAN else mirror))
            state["info"] = 0
        dense = wide.toarray()
        # Zero pivots are replaced, as cuDSS does it: the matrix is disturbed.
        small = _SMALL_PIVOT[csr["dtype"].name] * max(abs(dense).max(), 1e-300)
        replaced = n - np.linalg.matrix_rank(dense, tol=small)
        if not matching:  # Rows are exchanged within small blocks only.
            replaced = max(replaced, int((abs(dense.diagonal()) <= small).sum()))
        state["npivots"] = replaced
        if replaced:
            dense = dense + small * np.diag(1 + np.arange(n) / n)
        state["scales"] = (1 / abs(dense).max(axis=0) if matching else np.ones(n)).astype(csr["dtype"].char.lower())
        dense = dense * state["scales"]
        state["dense"], state["factors"] = dense, la.splu(sp.csc_array(dense.astype(csr["dtype"])))
        state["matrix"] = csr

    def data_get(self, handle: int, data: int, parameter: int, address: int, num_bytes: int, size_written: int) -> None:
        name = DataParam(parameter).name
        self._fail_if_wanted(name)
        state = self._find(data, "data")
        matrix = state.get("matrix", {})
        index, mtype = matrix.get("index"), matrix.get("mtype")
        if name == "INERTIA":
            if mtype not in (MatrixType.SYMMETRIC, MatrixType.HERMITIAN):
                raise cuDSSError(Status.NOT_SUPPORTED)
            eigenvalues = np.linalg.eigvalsh(state["dense"])
            value = np.array([(eigenvalues > 0).sum(), (eigenvalues < 0).sum()], index)
        elif name == "DIAG":
            pivots = state["factors"].U.diagonal()
            is_cholesky = mtype in (MatrixType.SPD, MatrixType.HPD)
            value = np.sqrt(abs(pivots)) if is_cholesky and self.square_roots else pivots
            value = value.astype(matrix["dtype"])
        else:
            value = {
                "MEMORY_ESTIMATES": lambda: np.arange(16, dtype=np.int64) * 10**9,
                "INFO": lambda: np.array([state["info"]], np.int32),
                "LU_NNZ": lambda: np.array([state["factors"].nnz], np.int64),
                "NPIVOTS": lambda: np.array([state["npivots"]], index),
                "SCALE_ROW": lambda: np.ones_like(state["scales"]),
                "SCALE_COL": lambda: state["scales"],
            }[name]()
        assert num_bytes == value.nbytes, f"{name} has {value.nbytes} bytes, got room for {num_bytes}"
        ctypes.memmove(address, np.ascontiguousarray(value).ctypes.data, num_bytes)
        _at(size_written, 1, np.uint64)[0] = num_bytes
