"""Checkpoints in files, which the workers write for the client (`gsparse.distributed.worker.checkpoint_tasks`)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy.typing as npt

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
    checkpoint, paths = uuid.uuid4().hex, [str(folder / f"rows-{rank:05d}.npz") for rank in task_group.ranks]
    try:
        task_group.call(save, [(path, checkpoint, arrays[rank]) for rank, path in enumerate(paths)])
    except BaseException:
        with suppress(Exception):  # the user has to see the error that was raised before
            task_group.ask_remaining(discard, paths, checkpoint, seconds=_CLEANUP_TIMEOUT)
        raise
    names = [(path, checkpoint) for path in paths]
    first = task_group.call(publish, names, ranks=task_group.ranks[:1])
    return first + task_group.call(publish, names, ranks=task_group.ranks[1:])
