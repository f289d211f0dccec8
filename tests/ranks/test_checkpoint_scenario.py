"""Checkpoints on a real cluster one of whose workers fails while it writes.

Three worker processes write a checkpoint of another matrix into the same folder, over the older one, and one rank fails
meanwhile. When rank 0 replaces the link, the newer checkpoint replaces the older one. So every value that is read from
the folder must be that of the older matrix, or every value that of the newer one, which it must be if `checkpoint`
returned without an error.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.errors import CommunicationError

pytest.importorskip("distributed", reason="needs dask: pip install 'gsparse-gpu[dask]'")

from gsparse.distributed import distribute, from_loaders
from gsparse.distributed.io.loaders import RowLoader
from tests.ranks.faults import cluster_of, limit_file_size, pids

pytestmark = [pytest.mark.whole, pytest.mark.filterwarnings("ignore")]  # dask and tornado warn

# The number of rows, and of entries per row: each rank writes 2.5 MB.
ROWS, PER_ROW = 60_000, 10


def end_at_rename(is_before: bool) -> None:
    """Make this worker end when it replaces the link."""
    from gsparse.distributed.worker import entry_tasks

    rename = entry_tasks.rename

    def ending(part: Path, path: Path) -> None:
        if not is_before:
            rename(part, path)
        os.kill(os.getpid(), signal.SIGKILL)

    entry_tasks.rename = ending


@contextmanager
def failing(client: Any, worker: str, fault: str, chance: random.Random, usual_seconds: float) -> Iterator[None]:
    """Make a worker fail in the checkpoint that the block writes."""
    if fault == "killed at a random moment":
        arguments = pids(client)[worker], signal.SIGKILL
        timer = threading.Timer(chance.uniform(0, 1.2 * usual_seconds), os.kill, arguments)
        timer.start()
        yield
        timer.join()
    elif fault == "a full disk":
        client.run(limit_file_size, chance.randrange(3_000_000), workers=[worker])
        yield
        client.run(limit_file_size, -1, workers=[worker])
    else:
        client.run(end_at_rename, fault == "killed before it replaces the link", workers=[worker])
        yield


def test_a_checkpoint_during_which_a_rank_dies_is_the_older_or_the_newer_matrix(tmp_path: Path) -> None:
    chance = random.Random(3)
    S = sp.random_array((ROWS, ROWS), density=PER_ROW / ROWS, rng=np.random.default_rng(3), format="csr")
    S.data = np.ceil(9 * S.data)  # integers, so that no sum is rounded
    x = np.arange(ROWS) % 7.0
    with cluster_of(3) as client:
        with distribute(S, client=client) as A:
            A.checkpoint(tmp_path)  # the first call takes longer, for imports
            begin = time.monotonic()
            files = A.checkpoint(tmp_path)
            usual_seconds, older = time.monotonic() - begin, 1.0
        faults = "killed at a random moment", "a full disk", "killed before it replaces the link", "killed after it"
        for newer, fault in enumerate(faults, start=2):
            client.wait_for_workers(3, timeout=300)
            allowed = {older, float(newer)}
            with distribute(newer * S, client=client) as A:
                worker = A.workers[0 if "link" in fault or "after" in fault else chance.randrange(3)]
                with failing(client, worker, fault, chance, usual_seconds), suppress(CommunicationError, OSError):
                    A.checkpoint(tmp_path)
                    allowed = {float(newer)}
            rows = RowLoader(files, S.shape).rows(0, ROWS)
            older = rows.data[0] / S.data[0]
            assert older in allowed, fault
            np.testing.assert_array_equal(rows.data, older * S.data)
            np.testing.assert_array_equal(rows.indices, S.indices)
            client.wait_for_workers(3, timeout=300)
            with from_loaders(files, S.shape, client=client) as A:
                np.testing.assert_array_equal(A @ x, older * (S @ x))
