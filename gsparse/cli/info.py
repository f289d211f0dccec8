"""``info``: what a matrix is like, how its products would be computed, and what each format would take."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.cli.common import Command, add_device, add_json, add_matrix, describe, read_matrix, show, underway
from gsparse.linalg.preconditioners.square_matrix import SquareMatrix
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.plan.choice import Plan

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``info``."""
    add_matrix(parser)
    add_device(parser)
    parser.add_argument("--tune", action="store_true", help="time the best candidates too")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read, plan, print."""
    S = read_matrix(options)
    with underway("choosing a format"):
        A = GpuSparseMatrix(S, device=options.device, tune=options.tune)
        if options.tune:  # (candidates are timed when the first product is asked for)
            A @ np.zeros(A.shape[1])
        plan = A.plan
    found = {"file": options.file, **statistics(S, A), "plan": plan_of(plan), "memory": memory(S, plan)}
    show(found, _text(found, plan, S), options)
    return 0


def statistics(S: sp.csr_array, A: GpuSparseMatrix) -> dict[str, Any]:
    """Give what the entries are like."""
    lengths = np.diff(S.indptr)
    entries = S.tocoo()
    reach = abs(entries.row.astype(np.int64) - entries.col)
    return {
        "shape": S.shape,
        "dtype": str(S.dtype),
        "entries": S.nnz,
        "density": S.nnz / max(S.shape[0] * S.shape[1], 1),
        "rows": {
            "shortest": int(lengths.min(initial=S.shape[1])),
            "longest": int(lengths.max(initial=0)),
            "mean": float(lengths.mean()) if lengths.size else 0.0,
            "std": float(lengths.std()) if lengths.size else 0.0,
            "empty": int((lengths == 0).sum()),
        },
        "bandwidth": int(reach.max(initial=0)),
        "stored zeros": int((S.data == 0).sum()),
        "diagonal entries": int(np.unique(entries.row[reach == 0]).size),
        "hermitian": _is_hermitian(A),
    }


def _is_hermitian(A: GpuSparseMatrix) -> bool:
    """Tell whether a matrix equals its conjugate transpose, to the last bit."""
    if A.shape[0] != A.shape[1]:
        return False
    with SquareMatrix.of(A, "info", finite=False) as square:
        return square.equals_adjoint()


def plan_of(plan: Plan) -> dict[str, Any]:
    """Give a plan for programs: times in seconds, bytes of one product."""
    return {
        "device": plan.device,
        "format": plan.format,
        "reason": plan.reason,
        "candidates": [
            {
                "format": c.format,
                "columns": c.storage.columns,
                "values": c.storage.values,
                "bytes": c.nbytes,
                "padding": c.padding_ratio,
                "predicted_seconds": c.seconds,
                "setup_seconds": c.setup_seconds,
                "measured_seconds": c.measured,
            }
            for c in plan.candidates
        ],
    }


def memory(S: sp.csr_array, plan: Plan) -> dict[str, int]:
    """Give the bytes of the matrix, as SciPy's CSR and in each format."""
    scipy_csr = S.data.nbytes + S.indices.nbytes + S.indptr.nbytes
    return {"scipy csr": scipy_csr, **{c.format: c.storage.nbytes for c in plan.candidates}}


def _text(found: dict[str, Any], plan: Plan, S: sp.csr_array) -> str:
    rows = found["rows"]
    whole = max(found["memory"]["scipy csr"], 1)
    return "\n".join([
        f"{found['file'].name}: {describe(S)}, {found['density']:.3g} of all",
        f"entries a row {rows['shortest']:,} to {rows['longest']:,}, mean {rows['mean']:.2f}, std {rows['std']:.2f}; "
        f"{rows['empty']:,} rows empty",
        f"bandwidth {found['bandwidth']:,}; {found['diagonal entries']:,} rows have a diagonal entry; "
        f"{found['stored zeros']:,} stored zeros; {'equals' if found['hermitian'] else 'differs from'} its conjugate "
        "transpose",
        "",
        str(plan),
        "",
        f"{'memory, MB':<18}{'':>10}  of SciPy's",
        *(f"  {name:<16}{size / 1e6:>10.3f}  {size / whole:>9.2f}" for name, size in found["memory"].items()),
    ])  # fmt: skip


COMMAND = Command("tell what a matrix is like, and how its products are computed", add_arguments, run)
