"""CuPy's current stream and device are the same before and after every call, even if the call raises an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg as la

import gsparse
import gsparse.device.gpu
from gsparse import GpuSparseMatrix, linalg
from gsparse.device.base import Device
from gsparse.errors import DeviceMemoryError
from gsparse.linalg.preconditioners.base import Preconditioner
from tests.conftest import make_device
from tests.linalg.problems import convection, laplacian
from tests.support import STRUCTURES, from_lengths


def fail() -> None:
    raise ZeroDivisionError


@pytest.fixture(scope="module")
def gpu() -> Device:
    return make_device("gpu")


@pytest.fixture(scope="module")
def problem(gpu: Device) -> SimpleNamespace:
    """Make matrices and vectors of host and device, all ready before another stream is chosen."""
    cupy, S, T = gpu.xp, laplacian(20), convection(20)
    ragged = STRUCTURES["long rows"](np.random.default_rng(0))
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    block = np.random.default_rng(1).standard_normal((S.shape[0], 3))
    made = SimpleNamespace(
        cupy=cupy, gpu=gpu, S=S, T=T, ragged=ragged,
        A=GpuSparseMatrix(S, device=gpu), N=GpuSparseMatrix(T, device=gpu), b=b, B=block,
        b_gpu=cupy.asarray(b), B_gpu=cupy.asarray(block), B_fortran=cupy.asfortranarray(cupy.asarray(block)),
        x_ragged=np.ones(ragged.shape[1]),
    )  # fmt: skip
    cupy.cuda.Device().synchronize()
    return made


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an empty cache, so that tuned products have no earlier times."""
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path))


@pytest.fixture(params=["at the top", "in a block"])
def chosen(gpu: Device, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Choose a stream with `use`, also within a block of another stream."""
    cuda: Any = gpu.xp.cuda
    before, stream, outer = cuda.get_current_stream(), *(cuda.Stream(non_blocking=True) for _ in range(2))
    with outer if request.param == "in a block" else nullcontext():
        yield stream.use()
        stream.synchronize()
    before.use()


def write(p: Any) -> Any:
    A = p.A.copy()
    A[0, 0] = 7
    return A @ p.b_gpu


SOLVERS: dict[str, Callable[[Any], Any]] = {
    "cg": lambda p: linalg.cg(p.A, p.b_gpu),
    "cg, from the host": lambda p: linalg.cg(p.A, p.b),
    "cg, several from the host": lambda p: linalg.cg(p.A, p.B),
    "cg, by columns": lambda p: linalg.cg(p.A, p.B_fortran, x0=p.B_fortran),
    "cg, callback": lambda p: linalg.cg(p.A, p.B, callback=lambda x: None, maxiter=3, full_output=True),
    "cg, refined": lambda p: linalg.cg(p.A, p.b_gpu, inner_dtype="float32"),
    "cg, preconditioned": lambda p: linalg.cg(p.A, p.b_gpu, M=linalg.jacobi(p.A)),
    "cg, not converged": lambda p: linalg.cg(p.N, p.b_gpu, maxiter=5, full_output=True),
    "cg, foreign operator": lambda p: linalg.cg(la.aslinearoperator(p.S), p.b_gpu),
    "bicgstab": lambda p: linalg.bicgstab(p.N, p.b_gpu),
    "gmres": lambda p: linalg.gmres(p.N, p.b_gpu),
    "fgmres": lambda p: linalg.fgmres(p.N, p.b_gpu, M=linalg.jacobi(p.N)),
    "minres": lambda p: linalg.minres(p.A, p.b_gpu),
    "minres, checked": lambda p: linalg.minres(p.A, p.b_gpu, check=True),
    "lsqr": lambda p: linalg.lsqr(p.N, p.b_gpu),
    "lsmr": lambda p: linalg.lsmr(p.N, p.b_gpu),
    "chebyshev": lambda p: linalg.chebyshev(p.A, p.b_gpu, M=linalg.jacobi(p.A), maxiter=10, full_output=True),
    "lobpcg": lambda p: linalg.lobpcg(p.A, p.B_gpu, tol=0.5),
    "lobpcg, from the host": lambda p: linalg.lobpcg(p.A, p.B, tol=0.5),
    "accelerated": lambda p: la.cg(p.A.accelerated(), p.b),
}
PRECONDITIONERS: dict[str, Callable[[Any], Any]] = {
    "jacobi": lambda p: linalg.jacobi(p.A),
    "block_jacobi": lambda p: linalg.block_jacobi(p.A, 4),
    "chebyshev_polynomial": lambda p: linalg.chebyshev_polynomial(p.A),
    "isai": lambda p: linalg.isai(p.A),
    "isai, general": lambda p: linalg.isai(p.N),
    "ic0": lambda p: linalg.ic0(p.A),
    "ic0, by levels": lambda p: linalg.ic0(p.A, solve="levels"),
    "ilu0": lambda p: linalg.ilu0(p.N, shift=0.01),
    "amg": lambda p: linalg.amg(p.A),
    "fieldsplit": lambda p: linalg.fieldsplit(p.A, [slice(10), slice(10, None)], form="full", solvers="jacobi"),
    "amg, float32": lambda p: linalg.amg(p.A, dtype="float32"),
}
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "A @ x": lambda p: p.A @ p.b_gpu,
    "A @ x, from the host": lambda p: p.A @ p.b,
    "A @ X": lambda p: p.A @ p.B_gpu,
    "A @ X, by columns": lambda p: p.A @ p.B_fortran,
    "A @ X, from the host": lambda p: p.A @ p.B,
    "x @ A": lambda p: p.b_gpu @ p.N,
    "A.T @ x": lambda p: p.N.T @ p.b_gpu,
    "A.H @ X": lambda p: p.N.H @ p.B,
    "matvec, out": lambda p: p.A.matvec(p.b_gpu, out=p.cupy.empty_like(p.b_gpu)),
    "rmatmat": lambda p: p.N.rmatmat(p.B),
    "integers": lambda p: p.A @ p.b_gpu.astype(int),
    "timed": lambda p: GpuSparseMatrix(p.ragged, device=p.gpu, tune=True) @ p.x_ragged,
    "timed in products": lambda p: GpuSparseMatrix(p.ragged, device=p.gpu, tune="lazy") @ p.x_ragged,
    "long rows": lambda p: GpuSparseMatrix(p.ragged, device=p.gpu) @ np.ones((p.ragged.shape[1], 5)),
}
PRODUCTS |= {
    f"{format}, first product": lambda p, format=format: (  # type: ignore[misc]
        GpuSparseMatrix(p.S, device=p.gpu, format=format) @ p.b_gpu
    )
    for format in gsparse.FORMATS[1:]
}
CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "from the host": lambda p: GpuSparseMatrix(p.S, device=p.gpu),
    "from arrays": lambda p: GpuSparseMatrix(
        tuple(p.cupy.asarray(part) for part in (p.S.data, p.S.indices, p.S.indptr)), shape=p.S.shape
    ),
    "from columns on the device": lambda p: GpuSparseMatrix(p.B_fortran),
    "from columns to the host": lambda p: GpuSparseMatrix(p.B_fortran, device="cpu"),
    "device arrays": lambda p: (p.A.device_data, p.A.device_indices, p.A.device_indptr),
    "toarray": lambda p: p.A.toarray(),
    "tocsc": lambda p: p.A.tocsc(),
    "copy": lambda p: p.A.copy() @ p.b_gpu,
    "astype": lambda p: p.A.astype("float32") @ p.b_gpu,
    "with_data": lambda p: p.A.with_data(p.A.device_data * 2) @ p.b_gpu,
    "elementwise": lambda p: (abs(p.A) * 2) @ p.b_gpu,
    "a write": write,
    "plan": lambda p: str(p.A.plan),
}
ERRORS: dict[str, Callable[[Any], Any]] = {
    "a callback": lambda p: linalg.cg(p.A, p.b_gpu, callback=lambda x: fail()),
    "an operator": lambda p: linalg.cg(la.LinearOperator(p.S.shape, lambda x: fail(), dtype=float), p.b_gpu),
    "minres, checked": lambda p: linalg.minres(p.N, p.b_gpu, check=True),
    "a shape": lambda p: linalg.cg(p.A, p.b_gpu[:-1]),
    "a product": lambda p: p.A @ p.b_gpu[:-1],
    "a factorization": lambda p: linalg.ic0(p.N),
    "a dtype": lambda p: linalg.gmres(p.A, p.b_gpu, basis_dtype="int8"),
}


def current(cupy: Any) -> tuple[Any, int, int]:
    cuda = cupy.cuda
    return cuda.get_current_stream(), cuda.get_current_stream().ptr, cuda.runtime.getDevice()


def named(tables: dict[str, dict[str, Any]]) -> list[Any]:
    return [pytest.param(call, id=f"{kind}: {name}") for kind, table in tables.items() for name, call in table.items()]


CALLS = {"solver": SOLVERS, "preconditioner": PRECONDITIONERS, "product": PRODUCTS, "conversion": CONVERSIONS}


@pytest.mark.gpu
@pytest.mark.parametrize("call", named(CALLS))
def test_a_call_leaves_the_current_stream_and_device(problem: Any, chosen: Any, call: Any) -> None:
    before = current(problem.cupy)
    assert before[0] is chosen
    result = call(problem)
    assert current(problem.cupy) == before
    if isinstance(result, Preconditioner):
        for x in (problem.b, problem.B, problem.b_gpu, problem.B_fortran):
            result @ x
            assert current(problem.cupy) == before


@pytest.mark.gpu
@pytest.mark.parametrize("call", named({"error": ERRORS}))
def test_an_error_leaves_the_current_stream_and_device(problem: Any, chosen: Any, call: Any) -> None:
    before = current(problem.cupy)
    assert before[0] is chosen
    with pytest.raises((ZeroDivisionError, ValueError, TypeError, ArithmeticError)):
        call(problem)
    assert current(problem.cupy) == before


@pytest.mark.gpu
def test_running_out_of_memory_in_a_solve_leaves_the_stream(problem: Any, chosen: Any) -> None:
    rows = 2_000_000
    lengths = np.ones(rows, int)
    lengths[7] = rows  # ELLPACK pads every row to this length
    A = GpuSparseMatrix(from_lengths(lengths, rows, np.random.default_rng(0)), device=problem.gpu, format="ellpack")
    before = current(problem.cupy)
    with pytest.raises(DeviceMemoryError):
        linalg.cg(A, problem.cupy.ones(rows))
    assert current(problem.cupy) == before


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True], ids=["at once", "in a graph"])
def test_a_second_stream_works_after_earlier_and_before_later_work(gpu: Device, captured: bool) -> None:
    cupy = gpu.xp
    x, y = cupy.zeros(1 << 24), cupy.zeros(1 << 24)

    def work() -> None:
        x.__iadd__(1)
        wait = gpu.alongside(lambda: cupy.multiply(x, 2, out=y))
        wait()
        y.__iadd__(x)

    work()
    with gpu.active(), gpu.own_stream():
        run = gpu.capture(work) if captured else work
        for _ in range(5):
            run()
    assert (cupy.asnumpy(x) == 6).all()
    assert (cupy.asnumpy(y) == 18).all()
