"""Time hypre's BoomerAMG with CG on the GPU: a peer of `measure_multigrid.py`.

    python hypre_program.py poisson7:N RTOL CONFIGURATION

CONFIGURATION is comma-separated, such as ``relax=18,aggressive=1,strong=0.25``; "" takes hypre's defaults. hypre 3.1
or later is needed, a shared library with CUDA, without MPI, and with 32-bit integers; HYPRE_LIBRARY is its path:
``cmake hypre/src -DBUILD_SHARED_LIBS=ON -DHYPRE_ENABLE_CUDA=ON -DHYPRE_ENABLE_MPI=OFF -DCMAKE_CUDA_ARCHITECTURES=90
-DHYPRE_ENABLE_DEVICE_MALLOC_ASYNC=ON -DHYPRE_ENABLE_UMPIRE=OFF -DHYPRE_ENABLE_CUSOLVER=OFF -DHYPRE_ENABLE_CUBLAS=OFF``.

It prints a JSON object: the median seconds of set-up and solve (`setup_s`, `solve_s`), `iterations`, `converged`, and
the relative residual that hypre reports.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from ctypes import CDLL, byref, c_double, c_int, c_void_p
from typing import Any

import cupy

from gsparse.bench.problems import stencil

REPEATS = 5
PARCSR = 5555
NOT_CONVERGED = 256
# Names of CONFIGURATION: hypre's functions, and what they get.
OPTIONS = {
    "relax": ("SetRelaxType", int),
    "coarsen": ("SetCoarsenType", int),
    "interpolation": ("SetInterpType", int),
    "strong": ("SetStrongThreshold", float),
    "most": ("SetPMaxElmts", int),
    "aggressive": ("SetAggNumLevels", int),
}

lib = CDLL(os.environ["HYPRE_LIBRARY"])


def call(name: str, *arguments: Any) -> None:
    """Call a function of hypre with pointers, integers and doubles, and raise an error if it fails."""
    converted = [c_double(a) if isinstance(a, float) else c_void_p(a.data.ptr) if hasattr(a, "data") else a
                 for a in arguments]  # fmt: skip
    code = getattr(lib, f"HYPRE_{name}")(*converted)
    if code not in (0, NOT_CONVERGED):
        raise RuntimeError(f"HYPRE_{name} returned {code}")
    lib.HYPRE_ClearAllErrors()


def create(name: str, *arguments: Any) -> c_void_p:
    made = c_void_p()
    call(name, *arguments, byref(made))
    return made


def vector(values: Any) -> tuple[c_void_p, c_void_p]:
    """Return a vector of hypre with copies of values on the device, and the object that owns it."""
    n = values.size
    made = create("IJVectorCreate", 0, 0, n - 1)
    call("IJVectorSetObjectType", made, PARCSR)
    call("IJVectorInitialize", made)
    call("IJVectorSetValues", made, n, cupy.arange(n, dtype=cupy.int32), values)
    call("IJVectorAssemble", made)
    return create("IJVectorGetObject", made), made


def matrix(data: Any, indices: Any, indptr: Any) -> c_void_p:
    n = indptr.size - 1
    made = create("IJMatrixCreate", 0, 0, n - 1, 0, n - 1)
    call("IJMatrixSetObjectType", made, PARCSR)
    call("IJMatrixInitialize", made)
    call("IJMatrixSetValues", made, n, cupy.diff(indptr), cupy.arange(n, dtype=cupy.int32), indices, data)
    call("IJMatrixAssemble", made)
    return create("IJMatrixGetObject", made)


def solver_of(options: dict[str, str], rtol: float) -> tuple[c_void_p, c_void_p]:
    """Return CG and its preconditioner, one cycle of BoomerAMG."""
    M, cg = create("BoomerAMGCreate"), create("ParCSRPCGCreate", 0)
    for name, value in options.items():
        function, convert = OPTIONS[name]
        call(f"BoomerAMG{function}", M, convert(value))
    for function, value in (("SetTol", 0.0), ("SetMaxIter", 1), ("SetKeepTranspose", 1)):
        call(f"BoomerAMG{function}", M, value)
    for function, value in (("SetTol", rtol), ("SetMaxIter", 500), ("SetTwoNorm", 1)):
        call(f"ParCSRPCG{function}", cg, value)
    call("ParCSRPCGSetPrecond", cg, lib.HYPRE_BoomerAMGSolve, lib.HYPRE_BoomerAMGSetup, M)
    return cg, M


def main() -> None:
    problem, configuration, rtol = sys.argv[1], sys.argv[3], float(sys.argv[2])
    options = dict(part.split("=") for part in configuration.split(",") if part)
    data, indices, indptr, shape = stencil(int(problem.removeprefix("poisson7:")), 7, xp=cupy)
    for name, value in (("Initialize", ()), ("SetMemoryLocation", (1,)), ("SetExecutionPolicy", (1,))):
        call(name, *value)
    call("SetSpGemmUseVendor", 0)
    A = matrix(data.astype(float), indices.astype(cupy.int32), indptr.astype(cupy.int32))
    exact = cupy.random.default_rng(0).standard_normal(shape[0])
    (b, _), times = vector(exact), []
    for _ in range(REPEATS + 1):  # the first one is not counted
        (x, made), (cg, M) = vector(cupy.zeros(shape[0])), solver_of(options, rtol)
        moments = [time.perf_counter()]
        for step in ("Setup", "Solve"):
            call(f"ParCSRPCG{step}", cg, A, b, x)
            cupy.cuda.Device().synchronize()
            moments.append(time.perf_counter())
        times.append((moments[1] - moments[0], moments[2] - moments[1]))
        iterations, residual = c_int(), c_double()
        call("ParCSRPCGGetNumIterations", cg, byref(iterations))
        call("ParCSRPCGGetFinalRelativeResidualNorm", cg, byref(residual))
        call("ParCSRPCGDestroy", cg)
        call("BoomerAMGDestroy", M)
        call("IJVectorDestroy", made)
    setup, solve = (statistics.median(column) for column in zip(*times[1:], strict=True))
    print(json.dumps({"setup_s": setup, "solve_s": solve, "iterations": iterations.value,
                      "converged": residual.value <= rtol, "residual": residual.value}))  # fmt: skip


if __name__ == "__main__":
    main()
