"""Time how much longer a solve takes through dask than in this process: ``python asv_bench/measure_client.py``.

A cluster of one worker (or ``--workers``) solves the 7-point Laplacian with `cg`. Each line is the median of several
solves after a first one, in turns:

- in this process, with vectors on the device, and with NumPy vectors;
- through dask, with NumPy vectors, and with dask arrays, whose parts stay on the worker;
- on as many ranks without dask, in processes of their own, with vectors on their devices;
- a copy of b and x over a local socket, which vectors of this process have to pay for.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client
from elliptic_problems import poisson
from measure_rank_multigrid import timed
from measure_ranks import first_of, on_ranks
from rank_problems import matrix

from gsparse import GpuSparseMatrix
from gsparse.device.select import get_device
from gsparse.distributed import LocalGpuCluster, distribute
from gsparse.distributed.ranks.communicator import bytes_of
from gsparse.distributed.ranks.sockets import read_into, write
from gsparse.linalg import cg

REPEATS = 9
# Seconds that a solve through dask may take more than in the process: besides the copies, and with vectors that stay.
MOST, MOST_IF_KEPT = 10e-3, 5e-3


def seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def copy_over_socket(values: np.ndarray) -> None:
    """Send an array to another thread over a local connection."""
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=read_into, args=(other, memoryview(bytearray(values.nbytes))))
        thread.start()
        write(one, bytes_of(values))
        thread.join()


def solve_seconds(communicator: Any, device: Any, pipe: Any, size: int) -> float:
    """Return the median seconds of a solve on ranks without dask."""
    A = matrix(communicator, device, (size, size, size))
    rows = A.rows.rows(communicator.rank)
    b = device.upload(np.random.default_rng(0).standard_normal(A.whole_shape[0])[rows])
    return timed(A, lambda: cg(A, b, rtol=1e-8))[0]


def parsed_options(description: str | None, size: int, workers: int) -> argparse.Namespace:
    """Return the options of the command line, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=size, help=f"points along each side, by default {size}")
    parser.add_argument("--workers", type=int, default=workers)
    parser.add_argument("--device", default="auto", help="auto, cpu or gpu")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    return parser.parse_args()


def main() -> None:
    options = parsed_options(__doc__, size=128, workers=1)
    S = poisson(options.size, 7)
    b = np.random.default_rng(0).standard_normal(S.shape[0])
    arguments: dict[str, Any] = {"rtol": 1e-8}
    with LocalGpuCluster(options.workers, device=options.device) as cluster, Client(cluster) as client:
        import dask.array as da

        with distribute(S, client=client) as A:
            device = get_device(options.device)
            own, on_device = GpuSparseMatrix(S, device=device), device.upload(b)
            chunks = tuple(np.diff(A.row_bounds).tolist())
            kept = client.persist(da.from_array(b, chunks=(chunks,)))
            calls: dict[str, Callable[[], Any]] = {
                "in this process, vectors on the device": lambda: cg(own, on_device, **arguments),
                "in this process, NumPy vectors": lambda: cg(own, b, **arguments),
                "through dask, NumPy vectors": lambda: cg(A, b, **arguments),
                "through dask, dask arrays": lambda: cg(A, kept, **arguments),
                "a copy of b and x over a socket": lambda: (copy_over_socket(b), copy_over_socket(b)),
            }
            times: dict[str, list[float]] = {name: [] for name in calls}
            for turn in range(REPEATS + 1):
                for name, call in calls.items():
                    elapsed = seconds(call)
                    if turn:
                        times[name].append(elapsed)
    kind = "cpu" if device.is_host else "gpu"
    without_dask = first_of(on_ranks(solve_seconds, options.workers, kind, options.size))
    medians = {name: statistics.median(of_call) for name, of_call in times.items()}
    for name, value in medians.items():
        print(f"{name:42} {1e3 * value:8.2f} ms", flush=True)
    print(f"{f'on {options.workers} ranks without dask':42} {1e3 * without_dask:8.2f} ms", flush=True)
    inside, outside, plain, staying, copies = medians.values()
    more, more_if_kept = plain - inside - copies, staying - inside
    for text, value, goal in (
        ("NumPy vectors: more than in the process and the copies", more, MOST),
        ("dask arrays: more than in the process", more_if_kept, MOST_IF_KEPT),
    ):
        print(f"{text}: {1e3 * value:.2f} ms, goal {1e3 * goal:g} {'met' if value <= goal else 'MISSED'}")
    if options.json:
        options.json.write_text(
            json.dumps({**medians, "numpy vectors in process": outside, "without dask": without_dask}, indent=1)
        )


if __name__ == "__main__":
    main()
