"""``info``: statistics of a matrix, the plan for its products, and the memory for each format."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.bench.problems import read_matrix
from gsparse.cli.common import Command, add_device, add_json, add_matrix, describe, print_result
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix
from gsparse.plan.choice import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``info``."""
    add_matrix(parser)
    add_device(parser)
    parser.add_argument("--tune", action="store_true", help="also time the best candidates")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read the matrix, choose its plan, and print both."""
    S = read_matrix(options.file, options.name)
    A = GpuSparseMatrix(S, device=options.device, tune=options.tune)
    if options.tune:  # the first product times the candidates for its dtypes
        A @ np.zeros(A.shape[1], A.dtype)
    plan = A.plan
    csr_bytes = S.data.nbytes + S.indices.nbytes + S.indptr.nbytes
    memory = {"scipy csr": csr_bytes, **{c.format: c.storage.nbytes for c in plan.candidates}}
    result = {"file": options.file, **statistics(S), "plan": _plan_as_dict(plan), "memory": memory}
    print_result(result, _text(result, plan, S), options)
    return 0


def statistics(S: sp.csr_array) -> dict[str, Any]:
    """Return statistics of the matrix: shape, row lengths, bandwidth, diagonal, stored zeros and symmetry.

    The bandwidth is the largest distance of an entry from the diagonal. Symmetry is exact equality.
    """
    row_lengths = np.diff(S.indptr)
    entries = S.tocoo()
    distance = abs(entries.row.astype(np.int64) - entries.col)
    return {
        "shape": S.shape,
        "dtype": str(S.dtype),
        "entries": S.nnz,
        "density": S.nnz / max(S.shape[0] * S.shape[1], 1),
        "rows": {
            "shortest": int(row_lengths.min()) if row_lengths.size else 0,
            "longest": int(row_lengths.max(initial=0)),
            "mean": float(row_lengths.mean()) if row_lengths.size else 0.0,
            "std": float(row_lengths.std()) if row_lengths.size else 0.0,
            "empty": int((row_lengths == 0).sum()),
        },
        "bandwidth": int(distance.max(initial=0)),
        "stored zeros": int((S.data == 0).sum()),
        "diagonal entries": int(np.unique(entries.row[distance == 0]).size),
        "hermitian": bool(S.shape[0] == S.shape[1] and (S != S.conj().T).nnz == 0),
    }


def _plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan as a dict for JSON. Times are in seconds; "bytes" is what one product moves."""
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


def _text(result: dict[str, Any], plan: Plan, S: sp.csr_array) -> str:
    rows, is_square = result["rows"], S.shape[0] == S.shape[1]
    symmetry = f"{'equals' if result['hermitian'] else 'differs from'} its conjugate transpose"
    csr_bytes = max(result["memory"]["scipy csr"], 1)
    return "\n".join([
        f"{result['file'].name}: {describe(S)}, density {result['density']:.3g}",
        f"entries per row {rows['shortest']:,} to {rows['longest']:,}, mean {rows['mean']:.2f}, std {rows['std']:.2f}; "
        f"{rows['empty']:,} rows empty",
        f"bandwidth {result['bandwidth']:,}; {result['diagonal entries']:,} rows have a diagonal entry; "
        f"{result['stored zeros']:,} stored zeros; {symmetry if is_square else 'not square'}",
        "",
        str(plan),
        "",
        f"{'memory, MB':<18}{'':>10}  over SciPy's",
        *(f"  {name:<16}{size / 1e6:>10.3f}  {size / csr_bytes:>9.2f}" for name, size in result["memory"].items()),
    ])  # fmt: skip


COMMAND = Command("describe a matrix and how gsparse would compute its products", add_arguments, run)
