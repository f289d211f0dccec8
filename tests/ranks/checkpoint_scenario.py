"""Checkpoints on a real cluster whose workers fail while they write: ``python -m tests.ranks.checkpoint_scenario``.

In each round, three worker processes write a checkpoint of another matrix into the same folder, over the older one, and
one rank fails meanwhile:

    killed at a random moment      SIGKILL, at any time from the start to a little after a checkpoint's usual end
    a full disk                    no file of the rank may grow beyond a random size
    killed before its rename       SIGKILL right before its part file gets its final name
    killed after its rename        SIGKILL right after that

When rank 0 renames its file, the newer checkpoint replaces the older one.

Then `from_loaders` reads the folder. Every value must be that of the older matrix, or every value that of the newer one
(which it must be if `checkpoint` returned without an error); the matrix's rows are compared one by one, and so is a
product on the cluster. A mixture, a refusal, or another error ends the command with exit code 1, and so does a round
that takes longer than `_ROUND_TIMEOUT`.

    python -m tests.ranks.checkpoint_scenario --times 100 --seed 0

took 25 minutes on two busy cores, most of them for new worker processes.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import distributed
import numpy as np
import scipy.sparse as sp

from gsparse.distributed import LocalGpuCluster, distribute, from_loaders
from gsparse.distributed.client.scheduler import known_workers
from gsparse.distributed.io.loaders import RowLoader
from gsparse.errors import CommunicationError

__all__ = ["FAULTS", "Round", "run_rounds"]

WORLD_SIZE = 3
# The number of rows, and of entries per row: each rank writes 2.5 MB.
_ROWS, _PER_ROW = 60_000, 10
# Time limits in seconds: for the silence of a rank, and for a whole round, including new worker processes.
_TIMEOUT, _ROUND_TIMEOUT = 60.0, 300.0
# After a worker is lost, dask's cluster waits 15 s for a new worker with the same name, and then drops the name. A busy
# machine may take longer to start a process, and a later round may kill the new worker too.
_PATIENCE = {"distributed.deploy.lost-worker-timeout": "1 day"}


@dataclass(frozen=True)
class Round:
    """The result of one round.

    Attributes
    ----------
    fault : str
        A name in `FAULTS`.
    rank : int
        The rank that failed.
    error : str
        The error of `checkpoint`, or "" if there was none.
    outcome : {"older", "newer"} or str
        The matrix that the folder holds. Another text says what is wrong.
    """

    fault: str
    rank: int
    error: str
    outcome: str

    @property
    def is_good(self) -> bool:
        return self.outcome == "newer" or (self.outcome == "older" and self.error != "")


# ----------------------------------------------------------------- faults, each lasts as long as one checkpoint


@contextmanager
def _killed_at_a_moment(client: Any, worker: str, chance: random.Random, usual_seconds: float) -> Iterator[None]:
    pid = client.run(os.getpid, workers=[worker])[worker]
    timer = threading.Timer(chance.uniform(0, 1.2 * usual_seconds), os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def _full_disk(client: Any, worker: str, chance: random.Random, usual_seconds: float) -> Iterator[None]:
    client.run(_limit_file_size, chance.randrange(3_000_000), workers=[worker])
    try:
        yield
    finally:
        client.run(_limit_file_size, -1, workers=[worker])


def _limit_file_size(num_bytes: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def _killed_before_its_rename(client: Any, worker: str, chance: random.Random, usual_seconds: float) -> Iterator[None]:
    client.run(_end_at_rename, True, workers=[worker])
    yield


@contextmanager
def _killed_after_its_rename(client: Any, worker: str, chance: random.Random, usual_seconds: float) -> Iterator[None]:
    client.run(_end_at_rename, False, workers=[worker])
    yield


def _end_at_rename(is_before: bool) -> None:
    """Make this worker end when it renames its part file."""
    from gsparse.distributed.worker import entry_tasks

    rename = entry_tasks.rename

    def ending(part: Path, path: Path) -> None:
        if not is_before:
            rename(part, path)
        os.kill(os.getpid(), signal.SIGKILL)

    entry_tasks.rename = ending


FAULTS: dict[str, Callable[..., Any]] = {
    "killed at a random moment": _killed_at_a_moment,
    "a full disk": _full_disk,
    "killed before its rename": _killed_before_its_rename,
    "killed after its rename": _killed_after_its_rename,
}


# ----------------------------------------------------------------------------------------------------- rounds


def run_rounds(times: int, seed: int) -> Iterator[Round]:
    """Run rounds on a new cluster.

    Parameters
    ----------
    times : int
        The number of rounds. The kinds of faults take turns.
    seed : int
        The seed of the random ranks, moments and sizes.

    Yields
    ------
    Round
    """
    chance = random.Random(seed)
    S = sp.random_array((_ROWS, _ROWS), density=_PER_ROW / _ROWS, rng=np.random.default_rng(seed), format="csr")
    S.data = np.ceil(9 * S.data)
    with (
        dask.config.set(_PATIENCE),
        tempfile.TemporaryDirectory() as folder,
        LocalGpuCluster(WORLD_SIZE, device="cpu") as cluster,
        distributed.Client(cluster) as client,
    ):
        older, files = 1.0, [f"{folder}/rows-{rank:05d}.npz" for rank in range(WORLD_SIZE)]
        with distribute(S, client=client, timeout=_TIMEOUT) as A:
            # The first call takes longer, for imports and compiling.
            A.checkpoint(folder)
            A @ np.ones(_ROWS)
            begin = time.monotonic()
            assert A.checkpoint(folder) == files
            usual_seconds = time.monotonic() - begin
        for number in range(times):
            client.wait_for_workers(WORLD_SIZE, timeout=_ROUND_TIMEOUT)
            newer, fault = number + 2.0, list(FAULTS)[number % len(FAULTS)]
            rank = chance.randrange(WORLD_SIZE)
            error = ""
            with distribute(newer * S, client=client, timeout=_TIMEOUT) as A:
                try:
                    with FAULTS[fault](client, A.workers[rank], chance, usual_seconds):
                        A.checkpoint(folder)
                except (CommunicationError, OSError) as raised:
                    error = type(raised).__name__
            outcome = _outcome(client, files, S, {"older": older, "newer": newer})
            older = newer if outcome == "newer" else older
            yield Round(fault, rank, error, outcome)


def _outcome(client: Any, files: list[str], S: sp.csr_array, values: dict[str, float]) -> str:
    """Read the folder, and return which matrix it holds."""
    try:
        rows = RowLoader(files, S.shape).rows(0, S.shape[0])
        client.wait_for_workers(WORLD_SIZE, timeout=_ROUND_TIMEOUT)
        x = np.arange(S.shape[1]) % 7.0
        with from_loaders(files, S.shape, client=client, workers=sorted(known_workers(client)), timeout=_TIMEOUT) as A:
            y = A @ x
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for name, value in values.items():
        # The values are integers, so that no sum is rounded.
        if np.array_equal(rows.data, value * S.data) and np.array_equal(y, value * (S @ x)):
            return name if np.array_equal(rows.indices, S.indices) else "other columns"
    found = np.unique(np.round(rows.data / S.data, 9)) if rows.nnz == S.nnz else f"{rows.nnz} entries"
    return f"a mixture of {values}: {found}"


def main() -> int:
    """Run the rounds that the command line requests, print their results, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, metavar="N", help="rounds (default: 100)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="default: 0")
    options = parser.parse_args()
    rounds, begin = [], time.monotonic()
    faulthandler.dump_traceback_later(_ROUND_TIMEOUT, exit=True)
    for found in run_rounds(options.times, options.seed):
        faulthandler.dump_traceback_later(_ROUND_TIMEOUT, exit=True)
        rounds.append(found)
        print(f"{len(rounds):4} rank {found.rank} {found.fault:26} {found.error or '-':18} {found.outcome}", flush=True)
    faulthandler.cancel_dump_traceback_later()
    print(f"\n{len(rounds)} checkpoints in {time.monotonic() - begin:.0f} s")
    for (fault, error, outcome), count in sorted(Counter((r.fault, r.error, r.outcome) for r in rounds).items()):
        print(f"{count:4} {fault:26} {error or 'no error':18} {outcome}")
    bad = sum(not found.is_good for found in rounds)
    print(f"{bad} of {len(rounds)} ended with a mixture, an error, or the older matrix after a success")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
