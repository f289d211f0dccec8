"""Lose a worker in the middle of a solve, as users see it: ``python asv_bench/measure_faults.py [--device cpu]``.

A cluster of one worker for each GPU (``--workers N``, ``--device cpu``) solves the 7-point Laplacian by CG with
multigrid over the ranks. A callback sends a signal to the last worker at the third iteration:

- `killed`: the worker is killed (``kill -9``). The solve raises an error, and after `repartition` the remaining workers
  and a new one solve again;
- `resumed`: the same with ``on_failure="resume"``. The solve goes on with the workers that are left;
- `stopped`: the worker is stopped (SIGSTOP), as if its host had frozen. The solve raises an error after the time-out.
  After SIGCONT, the same matrix solves again.

Each line shows seconds from the signal to the error, or to the end of the solve, and the residual of the last solve.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from distributed import Client
from elliptic_problems import poisson

from gsparse.distributed import LocalGpuCluster, distribute
from gsparse.errors import CommunicationError
from gsparse.linalg import amg, cg

ITERATION, TIMEOUT = 3, 5.0


class Fault:
    """A callback of a solve that sends a signal to a process at one iteration, and remembers when."""

    def __init__(self, pid: int, number: signal.Signals) -> None:
        self._pid, self._number, self._iteration = pid, number, 0
        self.began = 0.0

    def __call__(self, x: Any) -> None:
        self._iteration += 1
        if self._iteration == ITERATION:
            self.began = time.perf_counter()
            os.kill(self._pid, self._number)


def residual(S: sp.csr_array, x: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(b - S @ x) / np.linalg.norm(b))


def error_of(solve: Callable[[], Any]) -> CommunicationError:
    try:
        solve()
    except CommunicationError as error:
        return error
    raise AssertionError("the solve ended without an error")


def measure(client: Client, S: sp.csr_array, b: np.ndarray, kind: str) -> dict[str, Any]:
    workers = len(client.run(os.getpid))
    with distribute(S, client=client, timeout=TIMEOUT if kind == "stopped" else 60.0) as A:
        M = amg(A)
        begin = time.perf_counter()
        iterations = cg(A, b, M=M, rtol=1e-8, full_output=True).iterations
        whole = time.perf_counter() - begin
        victim = client.run(os.getpid)[A.workers[-1]]
        fault = Fault(victim, signal.SIGSTOP if kind == "stopped" else signal.SIGKILL)
        record = {"kind": kind, "rows": S.shape[0], "workers": workers, "iterations": iterations, "undisturbed": whole}
        if kind == "resumed":
            x, info = cg(A, b, M=M, rtol=1e-8, callback=fault, on_failure="resume", checkpoint_every=2)
            record |= {"seconds": time.perf_counter() - fault.began, "left": len(A.workers), "info": info}
            return record | {"residual": residual(S, x, b)}
        error = error_of(lambda: cg(A, b, M=M, rtol=1e-8, callback=fault))
        record |= {"seconds": time.perf_counter() - fault.began, "error": f"{type(error).__name__}: {error}"}
        begin = time.perf_counter()
        if kind == "stopped":
            os.kill(victim, signal.SIGCONT)
            x, info = cg(A, b, M=M, rtol=1e-8)
        else:
            client.wait_for_workers(workers, timeout=60)
            with A.repartition() as again:
                x, info = cg(again, b, M=amg(again), rtol=1e-8)
        return record | {"again": time.perf_counter() - begin, "info": info, "residual": residual(S, x, b)}


def line(record: dict[str, Any]) -> str:
    text = f"{record['kind']:7}: {record['rows']:,} rows on {record['workers']} workers, undisturbed "
    text += f"{record['iterations']} iterations in {1e3 * record['undisturbed']:.0f} ms; "
    if record["kind"] == "resumed":
        text += f"solved {record['seconds']:.2f} s after the kill on {record['left']} workers"
    else:
        text += (
            f"an error after {record['seconds']:.2f} s ({record['error']}); the next solve took {record['again']:.1f} s"
        )
    return f"{text}; info {record['info']}, residual {record['residual']:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=160, help="points along each side")
    parser.add_argument("--workers", type=int, help="by default one for each GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    S = poisson(options.size, 7)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    records = []
    for kind in ("killed", "resumed", "stopped"):
        with LocalGpuCluster(options.workers, device=options.device) as cluster, Client(cluster) as client:
            records.append(measure(client, S, b, kind))
            print(line(records[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
