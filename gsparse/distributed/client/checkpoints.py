"""Checkpoints in files, which the workers write for the client (`gsparse.distributed.worker.checkpoint_tasks`)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import distributed
import numpy.typing as npt

from gsparse.distributed.client.task_arguments import wait_for
from gsparse.distributed.client.task_group import TaskGroup
from gsparse.distributed.worker.checkpoint_tasks import discard, publish, save

# Seconds to wait until the ranks have removed the part files of a failed checkpoint. They continue after that by
# themselves.
_CLEANUP_TIMEOUT = 5.0


def write_checkpoint(task_group: TaskGroup, folder: Path, arrays: Sequence[dict[str, npt.NDArray[Any]]]) -> list[str]:
    """Make all ranks save their rows in part files, and then rename these.

    Parameters
    ----------
    task_group : TaskGroup
    folder : Path
        A folder that all workers share.
    arrays : sequence of dict, one for each rank
        Arrays to save in addition to the rows.

    Returns
    -------
    list of str
        The files, in the order of the ranks.

    Raises
    ------
    CommunicationError, WorkerLostError, OSError
        The folder then holds all of the older checkpoint, or all of this one. If more ranks wrote the older one, its
        further files remain beside this one.
    """
    settings, checkpoint = task_group.settings, uuid.uuid4().hex
    paths = [str(folder / f"rows-{rank:05d}.npz") for rank in task_group.ranks]
    try:
        with task_group.on_workers(arrays) as sent:
            tasks = [
                task_group.submit(save, "save", r, settings, r, paths[r], checkpoint, sent[r]) for r in task_group.ranks
            ]
            task_group.wait(tasks)
    except BaseException:
        _discard_on_workers(task_group, paths, checkpoint)
        raise
    first = task_group.submit(publish, "publish", 0, settings, 0, paths[0], checkpoint)
    # The other ranks' tasks take the first one's result, so that dask starts them after it.
    others = [
        task_group.submit(publish, "publish", r, settings, r, paths[r], checkpoint, first) for r in task_group.ranks[1:]
    ]
    return task_group.wait([first, *others])


def _discard_on_workers(task_group: TaskGroup, paths: Sequence[str], checkpoint: str) -> None:
    """Make the remaining workers remove their part files, which may fill the disk."""
    with suppress(Exception):  # the user has to see the error that was raised before
        settings, remaining = task_group.settings, task_group.remaining_workers()
        ranks = [rank for rank in task_group.ranks if task_group.workers[rank] in remaining]
        tasks = [task_group.submit(discard, "discard", rank, settings, rank, paths, checkpoint) for rank in ranks]
        distributed.fire_and_forget(tasks)
        wait_for(tasks, _CLEANUP_TIMEOUT)
