"""Time an iteration over ranks with single parts removed or doubled, to see what each part costs.

Run ``python asv_bench/measure_rank_parts.py``. The ranks have a GPU each (``--cpu N``: N processes with one thread
each), and 8 million rows of the 7-point Laplacian (``--points Z Y X``). CG is timed plain, with
``single_reduction=True`` and with multigrid: first unchanged, and then in these variants:

- `without messages`: ranks gather what others need, but do not send it, and multiply zeros in place of what they would
  receive;
- `without neighbours`: the matrix has no entries in columns of other ranks, so that there is nothing to gather;
- `one stream`: messages wait for other work on the same stream;
- `sums twice`: each sum over the ranks is computed once more, which shows what one costs;
- `independent`: each rank solves a problem of its own, at the same time as the others.

One rank alone is timed first. The set-up of multigrid is timed with its phases; `without messages` and `sums twice` do
not change it. All times are those of the slowest rank, except for the phases, which are the first rank's.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure_rank_multigrid import timed
from measure_ranks import WEAK_ROWS, first_of, iteration_seconds, on_ranks, report
from rank_problems import AlteredCommunicator, matrix

from gsparse.device.select import get_device
from gsparse.distributed import SingleCommunicator
from gsparse.linalg import amg

VARIANTS = "whole", "one stream", "without messages", "without neighbours", "sums twice", "independent"
TIMES = "set_up", "plain", "single_reduction", "multigrid"


def time_parts(communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    lengths, of_multigrid = ((20, 60), (3, 9)) if device.is_host else ((20, 220), (5, 35))
    host, records = communicator.on(get_device("cpu")), []
    for variant in VARIANTS if communicator.world_size > 1 else VARIANTS[:1]:
        is_independent = variant == "independent"
        own_shape = shape[0] // communicator.world_size, *shape[1:]
        altered = AlteredCommunicator(SingleCommunicator() if is_independent else communicator, variant)
        A = matrix(altered, device, own_shape if is_independent else shape, is_coupled=variant != "without neighbours")
        A.matvec(device.xp.ones(A.shape[0]))
        host.table([0])  # All ranks begin together, also those with problems of their own.
        set_up, M = timed(A, partial(amg, A))
        M @ device.xp.ones(A.shape[0])
        altered.begin()
        record = {"variant": variant, "world_size": communicator.world_size, "set_up": set_up, "phases": M.seconds}
        record["levels"] = [rows for rows, _ in M.sizes]
        for name, steps, options in (
            ("plain", lengths, {}),
            ("single_reduction", lengths, {"single_reduction": True}),
            ("multigrid", of_multigrid, {"M": M}),
        ):
            host.table([0])
            record[name] = iteration_seconds(A, steps, **options)[0]
        times = host.table(np.array([record[name] for name in TIMES]))
        records.append({**record, **dict(zip(TIMES, times.max(axis=0).tolist(), strict=True))})
    return records


def line(record: dict[str, Any]) -> str:
    text = f"{record['world_size']} ranks, {record['variant']:18}: CG {1e6 * record['plain']:8.1f} us per iteration, "
    text += f"with a single reduction {1e6 * record['single_reduction']:8.1f}, with multigrid "
    text += f"{1e6 * record['multigrid']:8.1f}"
    if record["variant"] != "sums twice":
        phases = ", ".join(f"{phase} {1e3 * seconds:.1f}" for phase, seconds in record["phases"].items())
        text += f"; set-up {1e3 * record['set_up']:.1f} ms ({phases}); levels {record['levels']}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, nargs=3, default=WEAK_ROWS, metavar=("Z", "Y", "X"))
    parser.add_argument("--cpu", type=int, metavar="N", help="use N processes with one thread each instead of GPUs")
    parser.add_argument("--nccl", action="store_true", help="let GPUs of one host communicate over NCCL")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args()
    world_size = options.cpu or get_device("gpu:0").xp.cuda.runtime.getDeviceCount()
    kind = "cpu" if options.cpu else "nccl" if options.nccl else "gpu"
    records: list[dict[str, Any]] = []
    for ranks in (1, world_size):
        shape = (ranks * options.points[0], *options.points[1:])
        for record in first_of(on_ranks(time_parts, ranks, kind, shape)):
            report(line(record))
            records.append(record)
    if options.json:
        options.json.write_text(json.dumps(records, indent=1, default=str))


if __name__ == "__main__":
    main()
