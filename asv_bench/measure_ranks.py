"""Time solves over several ranks: ``python asv_bench/measure_ranks.py [cpu] [dask] [weak] [strong] [large] [killed]``.

Sections that run on any machine:

- `cpu`: CG on two processes with one thread each, which communicate through memory;
- `dask`: CG on a dask cluster of two such workers, in turns with two such processes, and CG on dask arrays.

Sections that use all GPUs of the machine, with a process for each, which communicate through the GPUs' memory, or with
``--nccl`` over NCCL:

- `weak` and `strong`: scaling of CG on the 7-point Laplacian in slabs, beside CG with ``single_reduction=True``. The
  time of an iteration comes from the difference between a long solve and a short one;
- `large`: the product of a matrix larger than the memory of one GPU, checked with a formula;
- `killed`: ``kill -9`` of a rank while the others are in an all-reduce.

``--goals`` prints beside the figures what the project aims at, and whether it is met. ``--json FILE`` writes all
figures in the form that examples/thousand_gpus.py reads, of the rank with the most ghosts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import operator
import os
import signal
import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from rank_problems import matrix

from gsparse import GpuSparseMatrix, set_num_threads
from gsparse.bench.problems import stencil
from gsparse.device.base import Device
from gsparse.device.select import get_device
from gsparse.distributed import (
    Communicator,
    RankMatrix,
    RowBlock,
    RowPartition,
    SingleCommunicator,
    SocketCommunicator,
    listen,
)
from gsparse.distributed.ranks.gpu_memory import NcclCommunicator, connect_gpus
from gsparse.distributed.ranks.shared_memory import share_memory
from gsparse.errors import DeviceError
from gsparse.linalg import cg

SECRET = b"of this run only"
WEAK_ROWS, STRONG_ROWS = (256, 250, 125), (400, 400, 400)
WEAK_GOAL, STRONG_GOALS = 0.95, {2: 1.92, 4: 3.6}
CPU_GOALS = {"1e3 rows": 0.4e-3, "1e6 rows": 0.10}
REPEATS = 5
SECTIONS = ("cpu", "dask", "weak", "strong", "large", "killed")


def iteration_seconds(A: RankMatrix, lengths: tuple[int, int], **options: Any) -> tuple[float, Any]:
    """Return the seconds of an iteration of CG, the median of several differences, and the result of a long solve."""
    b = A.device.xp.ones(A.shape[0])

    def solve(maxiter: int) -> tuple[float, Any]:
        A.ranks.allreduce(A.device.xp.zeros(1))
        A.device.synchronize()
        begin = time.perf_counter()
        result = cg(A, b, rtol=0, maxiter=maxiter, full_output=True, **options)
        A.device.synchronize()
        return time.perf_counter() - begin, result

    solve(lengths[0])
    short, long = ([solve(n) for _ in range(REPEATS)] for n in lengths)
    seconds = [t[0] - s[0] for s, t in zip(short, long, strict=True)]
    return statistics.median(seconds) / (lengths[1] - lengths[0]), long[0][1]


# ------------------------------------------------------------------------------------------------- processes


def _rank(work: Callable[..., Any], rank: int, pipe: Any, kind: str, args: tuple[Any, ...]) -> None:
    listener = listen("127.0.0.1")
    pipe.send(listener.getsockname())
    addresses = pipe.recv()
    device = get_device({"gpu": f"gpu:{rank}", "nccl": f"gpu:{rank}", "shared gpu": "gpu:0"}.get(kind, "cpu"))
    set_num_threads(1 if device.is_host else 4)
    if device.is_host:  # Binds the rank to a processor, as mpirun does, because a rank that moves delays all others.
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
    try:
        with device.active():
            control = (
                SocketCommunicator(rank, addresses, listener, SECRET) if len(addresses) > 1 else SingleCommunicator()
            )
            with _connected(control, kind, device) as communicator:
                result = work(communicator, device, pipe, *args)
    except Exception as error:
        result = error
    pipe.send(result)


def _connected(control: Communicator, kind: str, device: Device) -> Communicator:
    if kind == "sockets" or control.world_size == 1:
        return control
    if kind == "nccl":
        return NcclCommunicator(control, device)
    on_host = share_memory(control)
    return on_host if device.is_host else connect_gpus(on_host, device)


def on_ranks(work: Callable[..., Any], world_size: int, kind: str, *args: Any, victim: int | None = None) -> list[Any]:
    """Run ``work(communicator, device, pipe, *args)`` on ranks in processes of their own. Return all results.

    The kind is "gpu" (a GPU for each rank) or "shared gpu", which communicate as a cluster's do, "nccl" (a GPU for each
    rank, over NCCL), "cpu" or "sockets" (CPUs that communicate through memory, or over sockets).
    A rank that fails returns its error. The victim is killed a second after all ranks have sent "solving".
    """
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(world_size)]
    ranks = [
        context.Process(target=_rank, args=(work, rank, rank_end, kind, args), daemon=True)
        for rank, (_, rank_end) in enumerate(ends)
    ]
    for process in ranks:
        process.start()
    pipes = [parent_end for parent_end, _ in ends]
    addresses = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(addresses)
    if victim is not None:
        for pipe in pipes:
            assert pipe.recv() == "solving"
        time.sleep(1.0)
        os.kill(ranks[victim].pid or 0, signal.SIGKILL)
        pipes = [pipe for rank, pipe in enumerate(pipes) if rank != victim]
    results = [pipe.recv() if pipe.poll(300) else TimeoutError("a rank hangs") for pipe in pipes]
    for process in ranks:
        process.join(10)
        process.kill()
    return results


def first_of(results: list[Any]) -> Any:
    """Return the first rank's result, or raise the error of a rank that failed."""
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results[0]


# ------------------------------------------------------------------------------------------------- work of the ranks


def time_cg(
    communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int], lengths: tuple[int, int], variable: bool
) -> dict[str, Any]:
    A = matrix(communicator, device, shape, variable)
    seconds, result = iteration_seconds(A, lengths)
    rows, nnz, plan = A.shape[0], int(A.diagonal.nnz), A.diagonal.plan.chosen
    return {
        "world_size": communicator.world_size, "rows": rows, "nnz": nnz, "ghosts": int(A.ghosts.size),
        "neighbours": len(A.halo.receives), "entry_bytes": (plan.nbytes - 2 * rows * A.dtype.itemsize) / nnz,
        "seconds_per_iteration": seconds, "residuals": result.residuals[:40].tolist(), "plan": plan.format,
    }  # fmt: skip


def time_both_forms(
    communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int], lengths: tuple[int, int], variable: bool
) -> dict[str, Any]:
    """Time plain CG, and CG with a single reduction per iteration on the same matrix."""
    record = time_cg(communicator, device, pipe, shape, lengths, variable)
    A = matrix(communicator, device, shape, variable)
    return {**record, "single_reduction_seconds": iteration_seconds(A, lengths, single_reduction=True)[0]}


def dask_cg_seconds(client: Any, blocks: list[sp.csr_array], iterations: int) -> float:
    """Return the seconds of an iteration of CG written with dask arrays, as one would do it without gsparse."""
    import dask
    import dask.array as da

    rows = [client.scatter(block, hash=False) for block in blocks]
    sizes = tuple(block.shape[0] for block in blocks)
    r = p = da.ones(sum(sizes), chunks=(sizes,)).persist()
    x, rho = da.zeros_like(r).persist(), float(da.vdot(r, r).compute())
    begin = time.perf_counter()
    for _ in range(iterations):
        whole = p.rechunk(-1).to_delayed()[0]
        parts = [dask.delayed(operator.matmul)(row, whole) for row in rows]
        q = da.concatenate([da.from_delayed(y, (n,), dtype=float) for y, n in zip(parts, sizes, strict=True)]).persist()
        alpha = rho / float(da.vdot(p, q).compute())
        x, r = dask.persist(x + alpha * p, r - alpha * q)
        rho, previous_rho = float(da.vdot(r, r).compute()), rho
        p = (r + rho / previous_rho * p).persist()
    x.compute()
    return (time.perf_counter() - begin) / iterations


def compare_with_dask(goals: bool) -> list[dict[str, Any]]:
    """Time CG on a dask cluster of two CPU workers with one thread each, on two processes, and on dask arrays."""
    from distributed import Client

    from gsparse.distributed import LocalGpuCluster, distribute

    records = []
    with LocalGpuCluster(2, device="cpu") as cluster, Client(cluster) as client:
        for n, lengths, goal in ((10, (20, 1220), 20.0), (100, (5, 45), 3.0)):
            data, indices, indptr, shape = stencil(n, 7)
            S = sp.csr_array((data, indices, indptr), shape=shape)
            b = np.ones(S.shape[0])
            with distribute(S, client=client) as A:
                cg(A, b, rtol=0, maxiter=lengths[0])
                cluster_times, process_times = [], []
                for _ in range(REPEATS):  # Takes turns, so that other load on the machine affects both.
                    short, long = (cg(A, b, rtol=0, maxiter=m, full_output=True).seconds for m in lengths)
                    cluster_times.append((long - short) / (lengths[1] - lengths[0]))
                    record = first_of(on_ranks(time_cg, 2, "cpu", (n, n, n), lengths, False))
                    process_times.append(record["seconds_per_iteration"])
                blocks = [S[first:last] for first, last in pairwise(A.row_bounds)]
                on_arrays = dask_cg_seconds(client, blocks, 8)
            on_cluster, on_processes = statistics.median(cluster_times), statistics.median(process_times)
            speedup = on_arrays / on_cluster
            report(
                f"cluster, 2 workers, {S.shape[0]:,} rows: {1e3 * on_cluster:.3f} ms per iteration, on two processes "
                f"{1e3 * on_processes:.3f} ms, on dask arrays {1e3 * on_arrays:.1f} ms: x {speedup:.1f}"
                + (verdict(goal, speedup >= goal) if goals else "")
            )
            record = {"section": "dask", "rows": S.shape[0], "ours": on_cluster}
            records.append({**record, "processes": on_processes, "dask": on_arrays})
    return records


class TimedCommunicator:
    """A communicator that adds up the time of its calls, and records the clock and that sum at each exchange."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seconds = inner, 0.0
        self.laps: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        if name not in ("exchange", "allreduce"):
            return attribute

        return partial(self._timed, attribute, name == "exchange")

    def bind_exchange(self, sends: Any, receives: Any) -> Any:
        return partial(self._timed, self._inner.bind_exchange(sends, receives), True)

    def _timed(self, call: Callable[..., Any], is_exchange: bool, *args: Any) -> Any:
        begin = time.perf_counter()
        if is_exchange:
            self.laps.append((begin, self.seconds))
        result = call(*args)
        self.seconds += time.perf_counter() - begin
        return self._timed_wait(result) if is_exchange else result

    def _timed_wait(self, wait: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            begin = time.perf_counter()
            wait()
            self.seconds += time.perf_counter() - begin

        return call

    def on(self, device: Any) -> Any:
        return self


def time_cpu(communicator: Any, device: Any, pipe: Any) -> dict[str, float]:
    small = matrix(communicator, device, (10, 10, 10))
    figures = {"1e3 rows": iteration_seconds(small, (20, 1220))[0]}
    timed = TimedCommunicator(communicator)
    A = matrix(timed, device, (100, 100, 100))
    figures["1e6 rows, s"] = iteration_seconds(A, (5, 40))[0]
    # The median over iterations is not affected by one in which the system takes a processor away for a while.
    timed.laps.clear()
    cg(A, np.ones(A.shape[0]), rtol=0, maxiter=200)
    laps = np.diff(np.array(timed.laps), axis=0)
    (seconds, waiting), (all_seconds, all_waiting) = np.median(laps, axis=0), laps.sum(axis=0)
    figures["1e6 rows"], figures["1e6 rows, mean"] = float(waiting / seconds), float(all_waiting / all_seconds)
    return figures


def solve_until_killed(communicator: Any, device: Any, pipe: Any) -> tuple[float, str, bool]:
    A = matrix(communicator, device, (64, 64, 64))
    b = device.xp.ones(A.shape[0])
    cg(A, b, maxiter=10)
    pipe.send("solving")
    kill_time = time.perf_counter() + 1.0  # See `on_ranks`.
    try:
        cg(A, b, rtol=0, maxiter=10**9)
    except Exception as error:
        seconds = time.perf_counter() - kill_time
        del A
        communicator.abort("a rank is lost")
        # Another solve, without the other ranks, shows that the GPU is still usable.
        alone = matrix(SingleCommunicator(), device, (64, 64, 64))
        info = cg(alone, device.xp.ones(alone.shape[0]))[1]
        return seconds, f"{type(error).__name__}: {error}; afterwards info {info}", communicator.is_stuck
    raise AssertionError("it has converged")


def multiply_large(communicator: Any, device: Any, pipe: Any, rows: int, width: int) -> dict[str, Any]:
    """Multiply a matrix with a band of `width` diagonals by ones.

    A formula gives the values of each row, so that the sum of each row, which is the exact product, can be computed
    again without the matrix.
    """
    xp, world_size, rank = device.xp, communicator.world_size, communicator.rank
    first, total = rank * rows, world_size * rows
    half = width // 2
    indices, data = xp.empty(rows * width, np.int64), xp.empty(rows * width)
    band = np.arange(width) - half
    step = 1 << 22
    for begin in range(0, rows, step):
        part = xp.arange(first + begin, first + min(begin + step, rows))[:, None]
        entries = slice(begin * width, (begin + len(part)) * width)
        columns = part + xp.asarray(band)
        data[entries] = (((part * 31 + columns * 17) % 1021) / 1024.0).reshape(-1)
        # An entry in a column of another rank is stored in the nearest column of this rank, with the value 0. The
        # off-diagonal block below has its value.
        local = columns - first
        outside = ((local < 0) | (local >= rows)).reshape(-1)
        data[entries][outside] = 0
        indices[entries] = xp.clip(local, 0, rows - 1).reshape(-1)
    indptr = xp.arange(0, rows * width + 1, width, dtype=np.int64)
    arrays = data, indices, indptr
    diagonal = GpuSparseMatrix(arrays, shape=(rows, rows), device=device, format="csr_vector", compress=False)
    del data, indices, indptr, arrays
    edges = []
    for edge_rows in (np.arange(0, half), np.arange(rows - half, rows)):
        r = first + edge_rows[:, None]
        c = r + band
        mask = ((c < first) | (c >= first + rows)) & (c >= 0) & (c < total)
        edges.append((np.broadcast_to(r, c.shape)[mask], c[mask]))
    r, c = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    ghosts, ghost_positions = np.unique(c, return_inverse=True)
    boundary, boundary_positions = np.unique(r - first, return_inverse=True)
    off_diagonal = sp.csr_array(
        (((r * 31 + c * 17) % 1021) / 1024.0, (boundary_positions, ghost_positions)), shape=(boundary.size, ghosts.size)
    )
    partition = RowPartition(tuple(rows * k for k in range(world_size + 1)))
    A = RankMatrix(RowBlock(diagonal, off_diagonal, boundary, ghosts), partition, partition, communicator, device)
    y = A.matvec(xp.ones(rows))
    worst = 0.0
    for begin in range(0, rows, step):
        part = xp.arange(first + begin, first + min(begin + step, rows))[:, None]
        columns = part + xp.asarray(band)
        values = ((part * 31 + columns * 17) % 1021) / 1024.0
        exact = xp.where((columns >= 0) & (columns < total), values, 0).sum(axis=1)
        worst = max(worst, float(abs(y[begin : begin + len(part)] - exact).max()))
    stored = sum(a.nbytes for a in (A.diagonal.device_data, A.diagonal.device_indices, A.diagonal.device_indptr))
    return {"rows": total, "nnz": rows * width * world_size, "bytes_a_rank": int(stored), "worst": worst}


# ------------------------------------------------------------------------------------------------- sections


def report(text: str) -> None:
    """Print a line immediately."""
    print(text, flush=True)


def verdict(goal: float, is_met: bool) -> str:
    return f" goal {goal} {'met' if is_met else 'MISSED'}"


def scaling(section: str, gpus: int, records: list[dict[str, Any]], goals: bool, kind: str) -> None:
    for variable in (False, True):
        single_rank_seconds: float | None = None
        for world_size in [n for n in (1, 2, 4, 8) if n <= gpus]:
            z, y, x = WEAK_ROWS if section == "weak" else STRONG_ROWS
            shape = (z * world_size, y, x) if section == "weak" else (z, y, x)
            lengths = (20, 220) if section == "weak" else (20, 100)
            results = on_ranks(time_both_forms, world_size, kind, shape, lengths, variable)
            first_of(results)
            record = max(results, key=operator.itemgetter("ghosts"))
            seconds = record["seconds_per_iteration"]
            single_rank_seconds = single_rank_seconds or seconds
            ratio = single_rank_seconds / seconds
            goal = WEAK_GOAL if section == "weak" else STRONG_GOALS.get(world_size)
            remark = verdict(goal, ratio >= goal) if goals and world_size > 1 and goal is not None else ""
            if section == "strong" or world_size == 1:
                reference = next((r for r in records if r["section"] == section and r["variable"] == variable), record)
                deviation = np.max(abs(np.divide(record["residuals"], reference["residuals"]) - 1)[:20])
                remark += f"; residuals off by {deviation:.1e}"
            records.append({**record, "section": section, "variable": variable})
            coefficients = "variable" if variable else "constant"
            report(f"{section:7} {coefficients} {world_size} GPUs, {shape[0] * shape[1] * shape[2]:>11,} rows "
                   f"({record['plan']}): {1e6 * seconds:8.1f} us per iteration, x {ratio:.3f}{remark}; "
                   f"with a single reduction {1e6 * record['single_reduction_seconds']:8.1f} us")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["cpu"], metavar="SECTION", help=" ".join(SECTIONS))
    parser.add_argument("--json")
    parser.add_argument("--goals", action="store_true", help="print which of the project's goals are met")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--nccl", action="store_true", help="let GPUs of one host communicate over NCCL, too")
    parser.add_argument(
        "--rows", type=int, default=150_000_000, help="rows per rank of the large matrix, with 32 entries each"
    )
    options = parser.parse_args()
    if unknown := [section for section in options.sections if section not in SECTIONS]:
        parser.error(f"unknown section {' '.join(unknown)}; there are {' '.join(SECTIONS)}")
    records: list[dict[str, Any]] = []
    gpus, gpu_kind = options.gpus, "nccl" if options.nccl else "gpu"
    on_gpus = [section for section in options.sections if section not in ("cpu", "dask")]
    if on_gpus and not gpus:
        try:
            gpus = get_device("gpu:0").xp.cuda.runtime.getDeviceCount()
        except DeviceError:
            reason = "needs GPUs, but none is usable on this machine (gsparse doctor says why); try cpu"
            parser.exit(2, f"{' '.join(on_gpus)}: {reason}\n")
    for section in options.sections:
        if section == "cpu":
            rank_figures = on_ranks(time_cpu, 2, "cpu")
            figures = first_of(rank_figures)
            # The smaller share is the communication itself. The other rank also waits for the slower one.
            shares = sorted(record["1e6 rows"] for record in rank_figures)
            figures["1e6 rows"] = shares[0]
            for name, goal in CPU_GOALS.items():
                remark = verdict(goal, figures[name] <= goal) if options.goals else ""
                report(f"cpu, 2 processes, CG, {name}: {figures[name]:.3g}{remark}")
            report(
                f"cpu, 1e6 rows: {1e3 * figures['1e6 rows, s']:.2f} ms per iteration; the faster rank waits for "
                f"{shares[-1]:.2f} of its median iteration; {figures['1e6 rows, mean']:.2f} of all iterations is "
                "communication"
            )
            records.append({"section": section, **figures})
        elif section == "dask":
            records += compare_with_dask(options.goals)
        elif section in ("weak", "strong"):
            scaling(section, gpus, records, options.goals, gpu_kind)
        elif section == "large":
            figures = on_ranks(multiply_large, gpus, gpu_kind, options.rows, 32)
            first_of(figures)
            stored = sum(record["bytes_a_rank"] for record in figures)
            worst = max(record["worst"] for record in figures)
            report(
                f"large: {figures[0]['rows']:,} rows, {figures[0]['nnz']:,} entries, {stored / 1e9:.1f} GB, "
                f"worst error {worst}"
            )
            records.append({"section": section, **figures[0], "stored": stored, "worst": worst})
        else:
            for record in on_ranks(solve_until_killed, gpus, "gpu", victim=gpus - 1):
                report(f"killed: {record}")
                records.append({"section": section, "found": str(record)})
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
