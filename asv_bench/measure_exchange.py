"""Time messages and sums between two ranks: ``python asv_bench/measure_exchange.py [cpu] [shared-gpu] [gpu]``.

- `cpu`: two processes, through memory and over sockets;
- `shared-gpu`: two processes that use one GPU;
- `gpu`: two processes with a GPU each, through the GPUs' memory and over NCCL.

Each rank sends as many bytes as it receives. The time is that of the GPU, between two events (a CUDA graph of several
calls, where calls only queue work). Beside it stands a copy of the same bytes within the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure_ranks import first_of, on_ranks, report

KINDS = {"cpu": ("cpu", "sockets"), "shared-gpu": ("shared gpu",), "gpu": ("gpu", "nccl")}
# Elements of float64. A halo of 200 x 200 points has 40,000.
SIZES, SUMS = (1, 1_000, 40_000, 160_000, 1_000_000), (1, 64, 512)
CALLS, REPEATS = 20, 15


def seconds_of(call: Callable[[], Any], device: Any, is_queued: bool, barrier: Callable[[], Any]) -> float:
    """Return the median seconds of a call that all ranks make."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    run: Any = calls
    calls()
    device.synchronize()
    if is_queued and not device.is_host:
        cuda = device.xp.cuda
        stream = cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            calls()
            graph = stream.end_capture()
        run = lambda: graph.launch(cuda.get_current_stream())  # noqa: E731
    times = []
    for _ in range(REPEATS):
        device.synchronize()
        barrier()
        read = device.timed(run)
        device.synchronize()
        times.append((read() or 0.0) / CALLS)
    return statistics.median(times)


def exchange_with(communicator: Any, other: int, sent: Any, received: Any) -> None:
    communicator.exchange({other: sent}, {other: received})()


def copy(source: Any, target: Any) -> None:
    target[...] = source


def time_messages(communicator: Any, device: Any, pipe: Any) -> dict[str, list[float]]:
    other, figures = 1 - communicator.rank, dict[str, list[float]]()

    def seconds(call: Callable[[], Any], is_queued: bool) -> float:
        return seconds_of(call, device, is_queued, lambda: communicator.allreduce(np.zeros(1)))

    for size in SIZES:
        sent, received = device.upload(np.full(size, float(communicator.rank))), device.upload(np.full(size, np.nan))
        exchange = seconds(partial(exchange_with, communicator, other, sent, received), communicator.is_queued)
        assert (device.download(received) == other).all()
        figures[f"message of {8 * size:,} bytes"] = [exchange, seconds(partial(copy, sent, received), True)]
    for size in SUMS:
        values = device.upload(np.zeros(size))
        figures[f"sum of {size} numbers"] = [seconds(partial(communicator.allreduce, values), communicator.is_queued)]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", default=["cpu"], metavar="SECTION", help=" ".join(KINDS))
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    if unknown := [section for section in options.sections if section not in KINDS]:
        parser.error(f"unknown section {' '.join(unknown)}; there are {' '.join(KINDS)}")
    records = {}
    for section in options.sections:
        for kind in KINDS[section]:
            records[kind] = first_of(on_ranks(time_messages, 2, kind))
            for name, times in records[kind].items():
                beside = f", a copy {1e6 * times[1]:8.1f} us" if len(times) > 1 else ""
                report(f"{kind:10} {name:28} {1e6 * times[0]:8.1f} us{beside}")
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
