"""Time gradients with PyTorch, beside torch.sparse: ``python asv_bench/measure_gradients.py``. Needs PyTorch.

For products with vectors and with several columns, in milliseconds: the forward pass, the backward pass with gradients
in the values of the matrix and in x, and how many forward passes the backward pass takes. The goal is 2.2. PyTorch's
own sparse matrices (COO and CSR) do the same in the same run. Then the same for a solve with conjugate gradients, for
which PyTorch has no counterpart. Each line also shows the largest error of a gradient in comparison with its formula,
which SciPy evaluates. ``--quick`` takes small problems, ``--dtype float32`` single precision.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from measure_smoothers import diffusion

import gsparse.linalg
import gsparse.torch
from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device

SAMPLES, GOAL = 11, 2.2


def problems(quick: bool) -> dict[str, sp.csr_array]:
    rng, n, rows = np.random.default_rng(0), 16 if quick else 100, 3_000 if quick else 300_000
    columns = rng.integers(0, rows, (rows, 16))
    random = sp.csr_array((rng.standard_normal(16 * rows), columns.reshape(-1), np.arange(0, 16 * rows + 1, 16)))
    random.sum_duplicates()
    return {f"7-point {n}^3": diffusion(n, 7), f"27-point {n // 2}^3": diffusion(n // 2, 27), f"random {rows}": random}


def medians(where: Any, forward: Callable[[], Any], operands: tuple[Any, ...]) -> tuple[float, float, Any]:
    """Return the seconds of a forward and of a backward pass, and the gradients."""
    wait = torch.cuda.synchronize if where.type == "cuda" else lambda: None
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(SAMPLES + 2):
        wait()
        begin = time.perf_counter()
        y = forward()
        wait()
        middle = time.perf_counter()
        found = torch.autograd.grad(y, operands, torch.ones_like(y))
        wait()
        times[0].append(middle - begin)
        times[1].append(time.perf_counter() - middle)
    return statistics.median(times[0][2:]), statistics.median(times[1][2:]), found


def line(name: str, method: str, forward: float, backward: float, error: float) -> str:
    ratio = backward / forward
    verdict = "" if method.startswith("torch") else ("reached" if ratio <= GOAL else "missed")
    return f"{name:18}{method:12}{1e3 * forward:10.3f}{1e3 * backward:10.3f}{ratio:8.2f} {error:9.1e}  {verdict}"


def relative_error(found: Any, expected: Any) -> float:
    return float(abs(found - expected).max() / abs(expected).max())


def measure_products(device: Any, where: Any, dtype: Any, quick: bool) -> Iterator[str]:
    for name, wide in problems(quick).items():
        S = wide.astype(dtype)
        A, columns = GpuSparseMatrix(S, device=device), S.indices
        for width in (None, 8, 32):
            shape = (S.shape[1],) if width is None else (S.shape[1], width)
            x = torch.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(dtype)).to(where)
            x.requires_grad_()
            values = torch.from_numpy(S.data).to(where).requires_grad_()
            arrays = x.detach().cpu().numpy().astype(float).reshape(S.shape[1], -1)
            of_values, of_x = arrays[columns].sum(axis=1), np.repeat(S.sum(axis=0)[:, None], arrays.shape[1], 1)

            def error(found: Any, of_values: Any = of_values, of_x: Any = of_x) -> float:
                return max(
                    relative_error(found[0].to_dense().cpu().numpy().reshape(-1)[: of_values.size], of_values),
                    relative_error(found[1].cpu().numpy().reshape(of_x.shape), of_x),
                )

            title = f"{name}" if width is None else f"  {width} columns"
            forward = lambda A=A, x=x, v=values: gsparse.torch.matmul(A, x, v)  # noqa: E731
            *times, found = medians(where, forward, (values, x))
            yield line(title, "gsparse", *times, error(found))
            yield from measure_torch(title, S, where, x, error)


def measure_torch(title: str, S: Any, where: Any, x: Any, error: Callable[[Any], float]) -> Iterator[str]:
    """Time PyTorch's own sparse matrices, whose gradient in the matrix is a sparse or a dense matrix."""
    coo = torch.sparse_coo_tensor(np.stack(S.tocoo().coords), S.data, S.shape, check_invariants=False).to(where)
    X = x.detach().reshape(S.shape[1], -1).clone().requires_grad_()
    for method, matrix in (("torch COO", coo.coalesce()), ("torch CSR", coo.to_sparse_csr())):
        leaf = matrix.detach().requires_grad_()
        try:
            *times, found = medians(where, lambda leaf=leaf: torch.sparse.mm(leaf, X), (leaf, X))
            yield line(title, method, *times, error((found[0].values(), found[1])))
        except RuntimeError as refused:
            yield f"{title:18}{method:12} {str(refused).splitlines()[0][:70]}"


def measure_solves(device: Any, where: Any, dtype: Any, quick: bool) -> Iterator[str]:
    S = diffusion(12 if quick else 64, 7)
    S = sp.csr_array(S + sp.diags_array(0.1 * S.diagonal())).astype(dtype)
    A = GpuSparseMatrix(S, device=device)
    b = torch.ones(S.shape[0], dtype=torch.from_numpy(S.data).dtype, device=where, requires_grad=True)
    values = torch.from_numpy(S.data).to(where).requires_grad_()
    for name, M in (("jacobi", gsparse.linalg.jacobi(A)), ("amg", gsparse.linalg.amg(A))):
        forward = lambda M=M: gsparse.torch.solve(A, b, values, solver=gsparse.linalg.cg, M=M)  # noqa: E731
        *times, found = medians(where, forward, (values, b))
        residual = (
            S @ found[1].cpu().numpy() - 1
        )  # the gradient in b solves the adjoint system, whose right-hand side is 1
        yield line(f"cg with {name}", "gsparse", *times, float(np.linalg.norm(residual) / np.sqrt(residual.size)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small problems")
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N")
    options = parser.parse_args()
    device, dtype = get_device(options.device), np.dtype(options.dtype)
    where = torch.device(device.name.replace("gpu", "cuda"))
    print(f"on {device.name}, {device.identity()}, PyTorch {torch.__version__}, {dtype}")
    print(f"{'matrix':18}{'method':12}{'forward':>10}{'backward':>10}{'ratio':>8} {'error':>9}")
    for measure in (measure_products, measure_solves):
        for text in measure(device, where, dtype, options.quick):
            print(text, flush=True)


if __name__ == "__main__":
    main()
