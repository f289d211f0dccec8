"""Checkpoints in files, as the client has its workers write them (`gsparse.distributed.worker.checkpoint_tasks`)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import distributed
import numpy.typing as npt

from gsparse.distributed.client.task_group import Gang
from gsparse.distributed.worker.checkpoint_tasks import discard, publish, save

__all__ = ["write_checkpoint"]

# Seconds to wait for ranks to remove what an attempt that failed has written; they go on with it after that.
_CLEANUP_TIMEOUT = 5.0


def write_checkpoint(gang: Gang, folder: Path, moved: Sequence[dict[str, npt.NDArray[Any]]]) -> list[str]:
    """Have all ranks save their rows, and then publish them.

    Parameters
    ----------
    gang : Gang
    folder : Path
        Shared by all workers.
    moved : sequence of dict, one for each rank
        Arrays to save beside the rows.

    Returns
    -------
    list of str
        The files, by rank.

    Raises
    ------
    CommunicationError, WorkerLost, OSError
        The folder then holds all of the older checkpoint, or all of this one.
    """
    roster, checkpoint = gang.roster, uuid.uuid4().hex
    paths = [str(folder / f"rows-{rank:05d}.npz") for rank in gang.ranks]
    try:
        gang.wait(
            [gang.submit(save, "save", r, roster, r, paths[r], checkpoint, moved[r]) for r in gang.ranks], gather=False
        )
    except BaseException:
        _discard_on_workers(gang, paths, checkpoint)
        raise
    first = gang.submit(publish, "publish", 0, roster, 0, paths[0], checkpoint)
    # The other ranks' tasks take the first one's result, so that dask starts them after it.
    others = [gang.submit(publish, "publish", r, roster, r, paths[r], checkpoint, first) for r in gang.ranks[1:]]
    return gang.wait([first, *others])


def _discard_on_workers(gang: Gang, paths: Sequence[str], checkpoint: str) -> None:
    """Have the workers that are left remove part files, which may fill the disk."""
    with suppress(Exception):  # (the error that was raised before is what the user has to know)
        roster, left = gang.roster, gang.left()
        ranks = [rank for rank in gang.ranks if gang.workers[rank] in left]
        tasks = [gang.submit(discard, "discard", rank, roster, rank, paths, checkpoint) for rank in ranks]
        distributed.fire_and_forget(tasks)
        distributed.wait(tasks, timeout=_CLEANUP_TIMEOUT)
