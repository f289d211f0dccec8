"""Time the first calls on a machine that never ran gsparse: ``python asv_bench/measure_first_calls.py``.

Each line is a process of its own with empty caches of compiled code: the seconds of the import, of the constructor, of
the first product and of one routine. A constant 7-point problem of 60³ points, or a matrix of 60,000 random rows with
``--matrix random``, is used on the CPU or the GPU of ``--device``. Seconds on a CPU are those of the processor, because
they hardly depend on what else the machine does. On a GPU they are those of the clock, because several threads compile.
``--kernels`` lists what took longest to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

ROUTINES = ("cg", "bicgstab", "gmres", "jacobi", "ic0", "amg", "A @ A", "A + A.T")
# Seconds that the project aims at: constructor and first product, and any routine, on a CPU and on a GPU.
GOALS = {"cpu": (2.0, 2.0), "gpu": (0.4, 1.0)}
CACHES = ("NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "GSPARSE_CACHE_DIR")
LISTED = 25
# Points in each direction of a 7-point problem, or rows and entries per row of a random matrix.
MATRICES = {"7-point": (60, 0), "random": (60_000, 4)}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("routines", nargs="*", default=list(ROUTINES), metavar="ROUTINE", help=", ".join(ROUTINES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernels", action="store_true", help="list the kernels that took longest to compile")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the kernels of each routine (GPU)")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help="compile nothing ahead")
    parser.add_argument("--matrix", choices=MATRICES, default=next(iter(MATRICES)), help="(default: %(default)s)")
    parser.add_argument("--dtype", default="float64")
    options = parser.parse_args()
    if options.child:
        if options.alone:
            compile_nothing_ahead()
        print(json.dumps(measure(options.child, options.device, options.matrix, options.dtype)))
        return
    if options.record:
        record(options.record, options.routines, options.device)
        return
    kind = options.device.partition(":")[0]
    columns = ("import", "constructor", "product", "routine", "compiled")
    print(f"{'routine':12}" + "".join(f"{column:>12}" for column in columns))
    for routine in options.routines:
        if routine not in ROUTINES:
            parser.error(f"no routine {routine}; there are {', '.join(ROUTINES)}")
        more = ["--alone"] if options.alone else []
        found = run_child(routine, options.device, options.matrix, options.dtype, *more)
        start, goals = found["constructor"] + found["product"], GOALS[kind]
        met = [seconds <= goal for seconds, goal in zip((start, found["routine"]), goals, strict=True)]
        verdicts = ", ".join(f"≤ {goal:g} {'met' if ok else 'MISSED'}" for goal, ok in zip(goals, met, strict=True))
        print(f"{routine:12}" + "".join(f"{found[column]:12.2f}" for column in columns[:-1])
              + f"{len(found['compiled']):12d}   constructor and product, routine: {verdicts}", flush=True)  # fmt: skip
        if options.kernels:
            compiled = sorted(found["compiled"], key=lambda item: -item[0])
            for seconds, name in compiled[:LISTED]:
                print(f"      {seconds:6.2f}  {name[:100]}")
            print(f"      {sum(seconds for seconds, _ in compiled):6.2f}  in all, one after the other", flush=True)


def run_child(routine: str, device: str, matrix: str, dtype: str, *more: str) -> dict[str, Any]:
    """Run `measure` in a process of its own, with empty caches."""
    command = [sys.executable, "-W", "ignore", __file__, "--child", routine, *more]
    options = ["--device", device, "--matrix", matrix, "--dtype", dtype]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **dict.fromkeys(CACHES, folder), "GSPARSE_QUIET": "1"}
        ran = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise SystemExit(f"{routine} failed: {ran.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def record(file: Path, routines: list[str], device: str) -> None:
    """Write the kernels that each routine launches, for the file that `gsparse.device.compilation` reads."""
    recording: dict[str, dict[str, dict[str, list[str]]]] = {}
    cases = list(product(("float64", "float32"), routines, MATRICES))
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda case: run_child(case[1], device, case[2], case[0], "--alone"), cases))
    for (dtype, routine, _), found in zip(cases, runs, strict=True):
        for name, kernels in (("A @ x", found["of_product"]), (routine, found["of_routine"])):
            by_source = recording.setdefault(dtype, {}).setdefault(name, {})
            for source, kernel in kernels:
                if kernel not in by_source.setdefault(source, []):
                    by_source[source].append(kernel)
    file.write_text(json.dumps(recording, indent=1) + "\n")


def measure(routine: str, device: str, matrix: str, dtype: str) -> dict[str, Any]:
    """Return the seconds of each first call in this process, and of each compilation."""
    clock = time.process_time if device.startswith("cpu") else time.perf_counter
    compiled = watch_gpu(clock) if device.startswith("gpu") else watch_cpu(clock)
    begin = clock()
    import numpy as np
    import scipy.sparse as sp

    import gsparse
    from gsparse import linalg

    seconds = {"import": clock() - begin}
    from gsparse.bench.problems import stencil, uniform
    from gsparse.device.select import get_device

    points, per_row = MATRICES[matrix]
    data, indices, indptr, shape = uniform(points, per_row) if per_row else stencil(points, 7)
    S, target = sp.csr_array((data, indices, indptr), shape=shape, dtype=dtype), get_device(device)
    if per_row:  # symmetric, and diagonally dominant
        S = S + S.T
        S = sp.csr_array(sp.diags_array(1 + abs(S).sum(axis=1)) - S, dtype=dtype)
    b = target.upload(np.ones(shape[0], dtype))

    def timed(name: str, call: Callable[[], Any]) -> Any:
        target.synchronize()
        begin = clock()
        result = call()
        target.synchronize()
        seconds[name] = clock() - begin
        return result

    A = timed("constructor", lambda: gsparse.GpuSparseMatrix(S, device=device))
    timed("product", lambda: A @ b)
    # In the order in which they were needed, without those of sources that were written in this process.
    of_product = [key for key in kernels_of_device(target) if key[0].endswith(".cu")]
    calls: dict[str, Callable[[], Any]] = {"A @ A": lambda: A @ A, "A + A.T": lambda: A + A.T}
    if routine in ("cg", "bicgstab", "gmres"):
        calls[routine] = lambda: getattr(linalg, routine)(A, b, rtol=0.1, maxiter=500, full_output=True)
    elif routine not in calls:
        calls[routine] = lambda: getattr(linalg, routine)(A)
    timed("routine", calls[routine])
    of_routine = [key for key in kernels_of_device(target) if key[0].endswith(".cu") and key not in of_product]
    return {**seconds, "compiled": compiled, "of_product": of_product, "of_routine": of_routine}


def compile_nothing_ahead() -> None:
    """Let each kernel be compiled when it is needed, in this process."""
    from gsparse.device.compilation import KernelStore

    KernelStore.begin = lambda *_: None  # type: ignore[method-assign]


def kernels_of_device(device: Any) -> list[tuple[str, str]]:
    """Return the source and the name of each kernel that a GPU has compiled, in this order."""
    return list(device.kernels.compiled) if device.kind == "gpu" else []


def watch_cpu(clock: Callable[[], float]) -> list[tuple[float, str]]:
    """Return a list to which each function that numba compiles is added, without what is compiled within it."""
    from numba.core import event

    compiled: list[tuple[float, str]] = []
    began: list[list[float]] = []

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:
            began.append([clock(), 0.0])

        def on_end(self, event: Any) -> None:
            start, within = began.pop()
            whole = clock() - start
            if began:
                began[-1][1] += whole
            function = event.data["dispatcher"].py_func
            compiled.append((whole - within, f"{function.__module__}.{function.__qualname__}"))

    event.register("numba:compile", Listener())  # type: ignore[no-untyped-call]
    return compiled


def watch_gpu(clock: Callable[[], float]) -> list[tuple[float, str]]:
    """Return a list to which each source that NVRTC compiles is added, CuPy's own kernels as well."""
    from cupy.cuda import compiler

    compiled: list[tuple[float, str]] = []
    function = "_compile_using_nvrtc_no_warning"  # of CuPy 14
    compile_source = getattr(compiler, function)

    def watched(source: str, *args: Any, **kwargs: Any) -> Any:
        begin = clock()
        result = compile_source(source, *args, **kwargs)
        names = kwargs.get("name_expressions") or (args[3] if len(args) > 3 else None)
        kernels = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\S+\s+)?(\w+)", source)
        name = f"ours: {names[0]}" if names else f"CuPy's: {', '.join(kernels)}"
        compiled.append((clock() - begin, name))
        return result

    setattr(compiler, function, watched)
    return compiled


if __name__ == "__main__":
    main()
