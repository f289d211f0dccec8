"""Time solves over several ranks: ``python asv_bench/measure_ranks.py [cpu] [dask] [weak] [strong] [large] [killed]``.

`cpu`: two processes of one thread each, over sockets; `dask`: a cluster of them, in turns with two such processes, and
CG on dask arrays; both run anywhere. The others on as many GPUs as there are, a process each, over NCCL: CG on the
7-point Laplacian in slabs, an iteration being a long minus a short solve. `large`: a matrix larger than one GPU's
memory, multiplied and checked by construction. `killed`: ``kill -9`` of a rank while others are in an all-reduce.
``--goals`` sets the project's own beside the figures: what it wants of them, and whether they are so. ``--json FILE``
keeps all figures, as `gsparse.bench.scaling_model` takes them.
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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from rank_problems import matrix

from gsparse import GpuSparseMatrix, set_num_threads
from gsparse.bench.problems import stencil
from gsparse.device.select import get_device
from gsparse.distributed import RankMatrix, RowBlock, RowPartition, SingleCommunicator, SocketCommunicator, listen
from gsparse.distributed.ranks.nccl import NcclCommunicator
from gsparse.errors import DeviceError
from gsparse.linalg import cg

SECRET = b"of this run only"
WEAK_ROWS, STRONG_ROWS = (256, 250, 125), (400, 400, 400)
WEAK_GOAL, STRONG_GOALS = 0.95, {2: 1.85, 4: 3.5}
CPU_GOALS = {"1e3 rows": 0.4e-3, "1e6 rows": 0.10}
REPEATS = 5
SECTIONS = ("cpu", "dask", "weak", "strong", "large", "killed")


def iteration_seconds(A: RankMatrix, lengths: tuple[int, int]) -> tuple[float, Any]:
    """Give the seconds of a CG iteration, the median of several differences, and the residuals of the longest solve."""
    b = A.device.xp.ones(A.shape[0])

    def solve(maxiter: int) -> tuple[float, Any]:
        A.ranks.allreduce(A.device.xp.zeros(1))
        A.device.synchronize()
        began = time.perf_counter()
        found = cg(A, b, rtol=0, maxiter=maxiter, full_output=True)
        A.device.synchronize()
        return time.perf_counter() - began, found

    solve(lengths[0])
    short, long = ([solve(n) for _ in range(REPEATS)] for n in lengths)
    seconds = [t[0] - s[0] for s, t in zip(short, long, strict=True)]
    return statistics.median(seconds) / (lengths[1] - lengths[0]), long[0][1]


# ------------------------------------------------------------------------------------------------- processes


def _rank(work: Callable[..., Any], rank: int, pipe: Any, kind: str, args: tuple[Any, ...]) -> None:
    listener = listen("127.0.0.1")
    pipe.send(listener.getsockname())
    addresses = pipe.recv()
    device = get_device(f"gpu:{rank}" if kind == "gpu" else "cpu")
    set_num_threads(1 if kind == "cpu" else 4)
    if kind == "cpu":  # to a processor of its own, as mpirun does: a rank that moves makes all others wait
        processors = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {processors[rank % len(processors)]})
    try:
        with device.active():
            control = (
                SocketCommunicator(rank, addresses, listener, SECRET) if len(addresses) > 1 else SingleCommunicator()
            )
            with NcclCommunicator(control, device) if kind == "gpu" and len(addresses) > 1 else control as communicator:
                found = work(communicator, device, pipe, *args)
    except Exception as error:
        found = error
    pipe.send(found)


def on_ranks(work: Callable[..., Any], world_size: int, kind: str, *args: Any, victim: int | None = None) -> list[Any]:
    """Run ``work(communicator, device, pipe, *args)`` in a process a rank; kill the victim once it says so."""
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(world_size)]
    ranks = [
        context.Process(target=_rank, args=(work, rank, theirs, kind, args), daemon=True)
        for rank, (_, theirs) in enumerate(ends)
    ]
    for process in ranks:
        process.start()
    pipes = [own for own, _ in ends]
    addresses = [pipe.recv() for pipe in pipes]
    for pipe in pipes:
        pipe.send(addresses)
    if victim is not None:
        for pipe in pipes:
            assert pipe.recv() == "solving"
        time.sleep(1.0)
        os.kill(ranks[victim].pid or 0, signal.SIGKILL)
        pipes = [pipe for rank, pipe in enumerate(pipes) if rank != victim]
    found = [pipe.recv() if pipe.poll(300) else TimeoutError("a rank hangs") for pipe in pipes]
    for process in ranks:
        process.join(10)
        process.kill()
    return found


def first_of(found: list[Any]) -> Any:
    for part in found:
        if isinstance(part, Exception):
            raise part
    return found[0]


# ------------------------------------------------------------------------------------------------- what ranks do


def time_cg(
    communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int], lengths: tuple[int, int], variable: bool
) -> dict[str, Any]:
    A = matrix(communicator, device, shape, variable)
    seconds, found = iteration_seconds(A, lengths)
    return {
        "world_size": communicator.world_size, "rows": int(A.whole_shape[0]), "nnz": int(A.diagonal.nnz),
        "ghosts": int(A.ghosts.size), "neighbours": len(A.halo.receives), "seconds_per_iteration": seconds,
        "residuals": found.residuals[:40].tolist(), "plan": A.diagonal.plan.chosen.format,
    }  # fmt: skip


def dask_cg_seconds(client: Any, blocks: list[sp.csr_array], iterations: int) -> float:
    """Give the seconds of an iteration of CG written with dask arrays: what one would do without this package."""
    import dask
    import dask.array as da

    rows = [client.scatter(block, hash=False) for block in blocks]
    sizes = tuple(block.shape[0] for block in blocks)
    r = p = da.ones(sum(sizes), chunks=(sizes,)).persist()
    x, rho = da.zeros_like(r).persist(), float(da.vdot(r, r).compute())
    began = time.perf_counter()
    for _ in range(iterations):
        whole = p.rechunk(-1).to_delayed()[0]
        parts = [dask.delayed(operator.matmul)(row, whole) for row in rows]
        q = da.concatenate([da.from_delayed(y, (n,), dtype=float) for y, n in zip(parts, sizes, strict=True)]).persist()
        alpha = rho / float(da.vdot(p, q).compute())
        x, r = dask.persist(x + alpha * p, r - alpha * q)
        rho, before = float(da.vdot(r, r).compute()), rho
        p = (r + rho / before * p).persist()
    x.compute()
    return (time.perf_counter() - began) / iterations


def beside_dask(goals: bool) -> list[dict[str, Any]]:
    """Time CG on a cluster of two CPU workers of one thread each, beside two processes, and CG on dask arrays."""
    from distributed import Client

    from gsparse.distributed import LocalGpuCluster, distribute

    found = []
    with LocalGpuCluster(2, device="cpu") as cluster, Client(cluster) as client:
        for n, lengths, goal in ((10, (20, 1220), 20.0), (100, (5, 45), 3.0)):
            made = stencil(n, 7)
            S = sp.csr_array((made.data, made.indices, made.indptr), shape=made.shape)
            b = np.ones(S.shape[0])
            with distribute(S, client=client) as A:
                cg(A, b, rtol=0, maxiter=lengths[0])
                ours, plain = [], []
                for _ in range(REPEATS):  # (in turns, since others may use this machine too)
                    short, long = (cg(A, b, rtol=0, maxiter=m, full_output=True).seconds for m in lengths)
                    ours.append((long - short) / (lengths[1] - lengths[0]))
                    part = first_of(on_ranks(time_cg, 2, "cpu", (n, n, n), lengths, False))
                    plain.append(part["seconds_per_iteration"])
                blocks = [S[first:last] for first, last in pairwise(A.row_bounds)]
                theirs = dask_cg_seconds(client, blocks, 8)
            seconds, alone = statistics.median(ours), statistics.median(plain)
            say(
                f"cluster, 2 workers, {S.shape[0]:,} rows: {1e3 * seconds:.3f} ms an iteration, as two processes "
                f"{1e3 * alone:.3f} ms, on dask arrays {1e3 * theirs:.1f} ms: x {theirs / seconds:.1f}"
                + (verdict(goal, theirs / seconds >= goal) if goals else "")
            )
            found.append({"section": "dask", "rows": S.shape[0], "ours": seconds, "processes": alone, "dask": theirs})
    return found


class Timed:
    """A communicator that adds up the time it takes, and notes the clock and that at each exchange."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.seconds = inner, 0.0
        self.laps: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("exchange", "allreduce"):
            return found

        def call(*args: Any) -> Any:
            began = time.perf_counter()
            if name == "exchange":
                self.laps.append((began, self.seconds))
            result = found(*args)
            self.seconds += time.perf_counter() - began
            return self._wait(result) if name == "exchange" else result

        return call

    def _wait(self, wait: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            began = time.perf_counter()
            wait()
            self.seconds += time.perf_counter() - began

        return call

    def on(self, device: Any) -> Any:
        return self


def time_cpu(communicator: Any, device: Any, pipe: Any) -> dict[str, float]:
    small = matrix(communicator, device, (10, 10, 10))
    found = {"1e3 rows": iteration_seconds(small, (20, 1220))[0]}
    timed = Timed(communicator)
    A = matrix(timed, device, (100, 100, 100))
    found["1e6 rows, s"] = iteration_seconds(A, (5, 40))[0]
    # The median iteration: one in which the system takes a processor away for a while counts as one.
    timed.laps.clear()
    cg(A, np.ones(A.shape[0]), rtol=0, maxiter=200)
    laps = np.diff(np.array(timed.laps), axis=0)
    (seconds, spent), (all_seconds, all_spent) = np.median(laps, axis=0), laps.sum(axis=0)
    found["1e6 rows"], found["1e6 rows, mean"] = float(spent / seconds), float(all_spent / all_seconds)
    return found


def solve_until_killed(communicator: Any, device: Any, pipe: Any) -> tuple[float, str, bool]:
    A = matrix(communicator, device, (64, 64, 64))
    b = device.xp.ones(A.shape[0])
    cg(A, b, maxiter=10)
    pipe.send("solving")
    began = time.perf_counter() + 1.0
    try:
        cg(A, b, rtol=0, maxiter=10**9)
    except Exception as error:
        seconds = time.perf_counter() - began
        del A
        communicator.abort("a rank is lost")
        # The GPU must be usable: another solve, alone.
        alone = matrix(SingleCommunicator(), device, (64, 64, 64))
        info = cg(alone, device.xp.ones(alone.shape[0]))[1]
        return seconds, f"{type(error).__name__}: {error}; afterwards info {info}", communicator.is_stuck
    raise AssertionError("it has converged")


def multiply_large(communicator: Any, device: Any, pipe: Any, rows: int, width: int) -> dict[str, Any]:
    """Multiply a band of `width` diagonals by ones; row i's values are those of a formula, and so is their sum."""
    xp, world, rank = device.xp, communicator.world_size, communicator.rank
    first, total = rank * rows, world * rows
    half = width // 2
    indices, data = xp.empty(rows * width, np.int64), xp.empty(rows * width)
    own = np.arange(width) - half
    step = 1 << 22
    for begin in range(0, rows, step):
        part = xp.arange(first + begin, first + min(begin + step, rows))[:, None]
        there = slice(begin * width, (begin + len(part)) * width)
        columns = part + xp.asarray(own)
        data[there] = (((part * 31 + columns * 17) % 1021) / 1024.0).reshape(-1)
        local = columns - first  # (of others: the nearest own column, with value 0; the couplings are added below)
        outside = ((local < 0) | (local >= rows)).reshape(-1)
        data[there][outside] = 0
        indices[there] = xp.clip(local, 0, rows - 1).reshape(-1)
    indptr = xp.arange(0, rows * width + 1, width, dtype=np.int64)
    arrays = data, indices, indptr
    diagonal = GpuSparseMatrix(arrays, shape=(rows, rows), device=device, format="csr_vector", compress=False)
    del data, indices, indptr, arrays
    edges = []
    for rows_there in (np.arange(0, half), np.arange(rows - half, rows)):
        r = first + rows_there[:, None]
        c = r + own
        mask = ((c < first) | (c >= first + rows)) & (c >= 0) & (c < total)
        edges.append((np.broadcast_to(r, c.shape)[mask], c[mask]))
    r, c = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    ghosts, places = np.unique(c, return_inverse=True)
    boundary, at = np.unique(r - first, return_inverse=True)
    off = sp.csr_array((((r * 31 + c * 17) % 1021) / 1024.0, (at, places)), shape=(boundary.size, ghosts.size))
    partition = RowPartition(tuple(rows * k for k in range(world + 1)))
    A = RankMatrix(RowBlock(diagonal, off, boundary, ghosts), partition, partition, communicator, device)
    y = A.matvec(xp.ones(rows))
    worst = 0.0
    for begin in range(0, rows, step):
        part = xp.arange(first + begin, first + min(begin + step, rows))[:, None]
        columns = part + xp.asarray(own)
        values = ((part * 31 + columns * 17) % 1021) / 1024.0
        exact = xp.where((columns >= 0) & (columns < total), values, 0).sum(axis=1)
        worst = max(worst, float(abs(y[begin : begin + len(part)] - exact).max()))
    stored = sum(a.nbytes for a in (A.diagonal.device_data, A.diagonal.device_indices, A.diagonal.device_indptr))
    return {"rows": total, "nnz": rows * width * world, "bytes_a_rank": int(stored), "worst": worst}


# ------------------------------------------------------------------------------------------------- sections


def say(text: str) -> None:
    print(text, flush=True)


def verdict(goal: float, is_met: bool) -> str:
    return f" goal {goal} {'met' if is_met else 'MISSED'}"


def scaling(section: str, gpus: int, records: list[dict[str, Any]], goals: bool) -> None:
    for variable in (False, True):
        alone: float | None = None
        for world_size in [n for n in (1, 2, 4, 8) if n <= gpus]:
            z, y, x = WEAK_ROWS if section == "weak" else STRONG_ROWS
            shape = (z * world_size, y, x) if section == "weak" else (z, y, x)
            lengths = (20, 220) if section == "weak" else (20, 100)
            found = first_of(on_ranks(time_cg, world_size, "gpu", shape, lengths, variable))
            seconds = found["seconds_per_iteration"]
            alone = alone or seconds
            ratio = alone / seconds
            goal = WEAK_GOAL if section == "weak" else STRONG_GOALS.get(world_size)
            more = verdict(goal, ratio >= goal) if goals and world_size > 1 and goal is not None else ""
            if section == "strong" or world_size == 1:
                same = next((r for r in records if r["section"] == section and r["variable"] == variable), found)
                off = np.max(abs(np.divide(found["residuals"], same["residuals"]) - 1)[:20])
                more += f"; residuals off by {off:.1e}"
            records.append({**found, "section": section, "variable": variable})
            say(f"{section:7} {'variable' if variable else 'constant'} {world_size} GPUs, {found['rows']:>11,} rows "
                f"({found['plan']}): {1e6 * seconds:8.1f} us an iteration, x {ratio:.3f}{more}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", default=["cpu"], metavar="SECTION", help=" ".join(SECTIONS))
    parser.add_argument("--json")
    parser.add_argument("--goals", action="store_true", help="say which of the project's goals are met")
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument(
        "--rows", type=int, default=150_000_000, help="rows a rank of the large matrix, 32 entries each"
    )
    given = parser.parse_args()
    if unknown := [section for section in given.sections if section not in SECTIONS]:
        parser.error(f"no section is called {' '.join(unknown)}; there are {' '.join(SECTIONS)}")
    records: list[dict[str, Any]] = []
    gpus = given.gpus
    on_gpus = [section for section in given.sections if section not in ("cpu", "dask")]
    if on_gpus and not gpus:
        try:
            gpus = get_device("gpu:0").xp.cuda.runtime.getDeviceCount()
        except DeviceError:
            parser.exit(2, f"{' '.join(on_gpus)}: needs GPUs, none is usable here (gsparse doctor says why); try cpu\n")
    for section in given.sections:
        if section == "cpu":
            ranks = on_ranks(time_cpu, 2, "cpu")
            found = first_of(ranks)
            # What the other waits more is for the slower one, not for the connection.
            shares = sorted(part["1e6 rows"] for part in ranks)
            found["1e6 rows"] = shares[0]
            for name, goal in CPU_GOALS.items():
                more = verdict(goal, found[name] <= goal) if given.goals else ""
                say(f"cpu, 2 processes, CG, {name}: {found[name]:.3g}{more}")
            say(
                f"cpu, 1e6 rows: {1e3 * found['1e6 rows, s']:.2f} ms an iteration; the faster rank waits "
                f"{shares[-1]:.2f} of the median one; of all, communication is {found['1e6 rows, mean']:.2f}"
            )
            records.append({"section": section, **found})
        elif section == "dask":
            records += beside_dask(given.goals)
        elif section in ("weak", "strong"):
            scaling(section, gpus, records, given.goals)
        elif section == "large":
            found = on_ranks(multiply_large, gpus, "gpu", given.rows, 32)
            first_of(found)
            stored = sum(part["bytes_a_rank"] for part in found)
            worst = max(part["worst"] for part in found)
            say(
                f"large: {found[0]['rows']:,} rows, {found[0]['nnz']:,} entries, {stored / 1e9:.1f} GB, "
                f"worst error {worst}"
            )
            records.append({"section": section, **found[0], "stored": stored, "worst": worst})
        else:
            for part in on_ranks(solve_until_killed, gpus, "gpu", victim=gpus - 1):
                say(f"killed: {part}")
                records.append({"section": section, "found": str(part)})
    if given.json:
        Path(given.json).write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
