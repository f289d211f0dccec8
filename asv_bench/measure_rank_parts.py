"""Time an iteration over ranks with single parts removed or doubled, to see what each part costs.

Run ``python asv_bench/measure_rank_parts.py``. The ranks have a GPU each (``--cpu N``: N processes with one thread
each), and 8 million rows of the 7-point Laplacian (``--points Z Y X``). CG is timed plain, with
``single_reduction=True`` and with multigrid: first unchanged, and then in these variants:

- `without messages`: ranks gather what others need, but do not send it, and multiply zeros in place of what they would
  receive;
- `without neighbours`: the matrix has no entries in columns of other ranks, so that there is nothing to gather;
- `one stream`: messages wait for other work on the same stream;
- `sums twice`: each sum over the ranks is computed once more, which shows what one costs.

One rank alone is timed first. The set-up of multigrid is timed with its phases.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from measure_rank_multigrid import timed
from measure_ranks import WEAK_ROWS, first_of, iteration_seconds, on_ranks, report
from rank_problems import AlteredCommunicator, matrix

from gsparse.device.select import get_device
from gsparse.linalg import amg

VARIANTS = "whole", "one stream", "without messages", "without neighbours", "sums twice"


def time_parts(communicator: Any, device: Any, pipe: Any, shape: tuple[int, int, int]) -> list[dict[str, Any]]:
    lengths, of_multigrid = ((20, 60), (3, 9)) if device.is_host else ((20, 220), (5, 35))
    records = []
    for variant in VARIANTS if communicator.world_size > 1 else VARIANTS[:1]:
        altered = AlteredCommunicator(communicator, variant)
        A = matrix(altered, device, shape, is_coupled=variant != "without neighbours")
        A.matvec(device.xp.ones(A.shape[0]))
        set_up, M = timed(A, partial(amg, A))
        M @ device.xp.ones(A.shape[0])
        altered.begin()
        record = {"variant": variant, "world_size": communicator.world_size, "set_up": set_up, "phases": M.seconds}
        record["levels"] = [rows for rows, _ in M.sizes]
        record["plain"] = iteration_seconds(A, lengths)[0]
        record["single_reduction"] = iteration_seconds(A, lengths, single_reduction=True)[0]
        record["multigrid"] = iteration_seconds(A, of_multigrid, M=M)[0]
        records.append(record)
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
