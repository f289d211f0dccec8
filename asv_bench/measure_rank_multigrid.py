"""Time multigrid over ranks: ``python asv_bench/measure_rank_multigrid.py [cpu] [weak] [strong] [shared]``.

- `cpu`: set-up and solve on 1, 2 and 4 processes with one thread each, which communicate through memory: the 7-point
  Laplacian, jumps of the coefficients by 1e6, and elasticity with rigid body modes;
- `weak`: the 7-point Laplacian with 8 million rows a GPU, on 1, 2, 4 and 8 GPUs as far as the machine has them;
- `strong`: the same with 64 million rows in all, on every number of GPUs whose memory suffices;
- `shared`: two processes on one GPU, and one.

Each section prints the iterations to 1e-8 and the seconds of set-up, update and solve, medians of several.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from elliptic_problems import checkerboard, diffusion, elasticity, poisson
from measure_ranks import STRONG_ROWS, WEAK_ROWS, first_of, on_ranks, report, verdict
from rank_problems import matrix

from gsparse.device.select import get_device
from gsparse.distributed import RankMatrix, RowPartition
from gsparse.linalg import amg, cg, rigid_body_modes

SECTIONS = ("cpu", "weak", "strong", "shared")
REPEATS, RTOL = 3, 1e-8
SHAPES = {"weak": WEAK_ROWS, "strong": STRONG_ROWS, "shared": (128, 128, 128)}
# How much longer than on one GPU set-up and solve may take on two, with as many rows a GPU.
GOALS = {2: (1.5, 1.25), 4: (2.0, 1.35), 8: (2.0, 1.35)}


def host_problem(name: str, size: int) -> tuple[sp.csr_array, int, Any]:
    """Return a matrix, its block size, and its near-nullspace candidates or None."""
    if name == "7-point":
        return poisson(size, 7), 1, None
    if name == "jumps 1e6":
        return diffusion(checkerboard(size, 3, 8, 1e6)), 1, None
    S, coordinates = elasticity((size // 2, size // 2, size // 2))
    return S, 3, rigid_body_modes(coordinates)


def timed(A: RankMatrix, call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the median seconds of a call that all ranks make, and its last result. The first call is not counted."""
    seconds, result = [], None
    for _ in range(REPEATS + 1):
        A.ranks.allreduce(A.device.xp.zeros(1))
        A.device.synchronize()
        begin = time.perf_counter()
        result = call()
        A.device.synchronize()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[1:]), result


def figures(A: RankMatrix, b: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    set_up, M = timed(A, lambda: amg(A, **arguments))
    solve, result = timed(A, lambda: cg(A, b, M=M, rtol=RTOL, full_output=True))
    update, M = timed(A, lambda: M.update(A))
    levels = [rows for rows, _ in M.sizes]
    return {
        "rows": A.whole_shape[0], "set_up": set_up, "update": update, "solve": solve, "iterations": result.iterations,
        "info": result.info, "levels": levels, "phases": M.seconds,
    }  # fmt: skip


def on_host_problem(communicator: Any, device: Any, pipe: Any, name: str, size: int) -> dict[str, Any]:
    S, block_size, B = host_problem(name, size)
    bounds = RowPartition.by_nnz(S.indptr, communicator.world_size).between_blocks(block_size)
    own = bounds.rows(communicator.rank)
    A = RankMatrix(S[own], bounds, bounds, communicator, device)
    b = device.upload(np.random.default_rng(0).standard_normal(S.shape[0])[own])
    return figures(A, b, {} if B is None else {"B": B[own], "block_size": block_size})


def on_grid(communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int]) -> dict[str, Any]:
    A = matrix(communicator, device, shape)
    return figures(A, device.xp.ones(A.shape[0]), {})


def line(title: str, record: dict[str, Any], one: dict[str, Any] | None, goals: tuple[float, float] | None) -> None:
    """Print the figures of one run, and how they compare with those of one rank."""
    text = (
        f"{title}: {record['rows']:>11,} rows, {record['iterations']:3} iterations, set-up "
        f"{1e3 * record['set_up']:8.1f} ms, update {1e3 * record['update']:8.1f}, solve {1e3 * record['solve']:8.1f}"
    )
    if one is not None:
        ratios = record["set_up"] / one["set_up"], record["solve"] / one["solve"]
        text += f"; over one rank: set-up x {ratios[0]:.2f}, solve x {ratios[1]:.2f}"
        text += verdict(one["iterations"] + 2, record["iterations"] <= one["iterations"] + 2).replace(
            "goal", "iterations"
        )
        if goals is not None:
            text += "".join(verdict(goal, ratio <= goal) for goal, ratio in zip(goals, ratios, strict=True))
    report(f"{text}; levels {record['levels']}")


def measure_cpu(size: int) -> list[dict[str, Any]]:
    records = []
    for name in ("7-point", "jumps 1e6", "elasticity"):
        one = None
        for world_size in (1, 2, 4):
            record = first_of(on_ranks(on_host_problem, world_size, "cpu", name, size))
            line(f"cpu, {name:10}, {world_size} processes", record, one, None)
            one = one or record
            records.append({**record, "section": "cpu", "problem": name, "world_size": world_size})
    return records


def measure_gpus(section: str, kind: str, world_sizes: list[int]) -> list[dict[str, Any]]:
    """Time the 7-point Laplacian on GPUs. The number of rows is proportional to the ranks in `weak` only."""
    records: list[dict[str, Any]] = []
    for world_size in world_sizes:
        z, y, x = SHAPES[section]
        title = f"{section}, {world_size} {'ranks of one GPU' if section == 'shared' else 'GPUs'}"
        results = on_ranks(on_grid, world_size, kind, (z * world_size if section == "weak" else z, y, x))
        if any(isinstance(result, MemoryError) for result in results):
            report(f"{title}: the memory does not suffice")
            continue
        record = first_of(results)
        goals = GOALS.get(world_size) if section == "weak" else None
        line(title, record, records[0] if records and section != "strong" else None, goals)
        records.append({**record, "section": section, "world_size": world_size})
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["cpu"], metavar="SECTION", help=" ".join(SECTIONS))
    parser.add_argument("--size", type=int, default=64, help="points along each side of the problems of `cpu`")
    parser.add_argument("--nccl", action="store_true", help="let GPUs of one host communicate over NCCL, too")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    if unknown := [section for section in options.sections if section not in SECTIONS]:
        parser.error(f"unknown section {' '.join(unknown)}; there are {' '.join(SECTIONS)}")
    records: list[dict[str, Any]] = []
    for section in options.sections:
        if section == "cpu":
            records += measure_cpu(options.size)
        elif section == "shared":
            records += measure_gpus(section, "shared gpu", [1, 2])
        else:
            gpus = get_device("gpu:0").xp.cuda.runtime.getDeviceCount()
            kind = "nccl" if options.nccl else "gpu"
            records += measure_gpus(section, kind, [n for n in (1, 2, 4, 8) if n <= gpus])
    if options.json:
        options.json.write_text(json.dumps(records, indent=1, default=str))


if __name__ == "__main__":
    main()
