"""Checkpoints in files: all of an older one or all of a newer one, whatever ends while the newer one is written.

A checkpoint is one file for each rank. Each checkpoint has an id of its own, which is in every one of its files. It is
written over an older checkpoint of the same names in two phases:

    save       every rank writes its rows to a part file, whose name has the id, and syncs it
    publish    rank 0 renames its part file to the file's own name; after it the other ranks rename theirs

The rename by rank 0 is the moment at which the newer checkpoint replaces the older one. It is one atomic operation, and
all part files are complete by then. A rank that ends before its own rename leaves its part file, and readers take the
part file that has the id of the first file (`readers.open_files`). Readers refuse files of different ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from gsparse.distributed.io.readers import CHECKPOINT, checkpoint_part
from gsparse.distributed.worker import registry as resident
from gsparse.distributed.worker.current_worker import check_home
from gsparse.distributed.worker.group_tasks import Roster
from gsparse.writing import new_file, rename

__all__ = ["discard", "publish", "save"]

# Checkpoints that were given up while ranks of this process may still be writing their part files.
_discarded: set[str] = set()


def save(roster: Roster, rank: int, path: str, checkpoint: str, moved: dict[str, npt.NDArray[Any]]) -> None:
    """Save a rank's rows as SciPy's .npz in a part file, with the checkpoint's id and how the rows were moved."""
    check_home(roster.workers[rank])
    part = checkpoint_part(Path(path), checkpoint)
    part.parent.mkdir(parents=True, exist_ok=True)
    with new_file(part) as file:
        sp.save_npz(file, resident.find(roster.key).matrix.rows_on_host(), compressed=False)
        with ZipFile(file, "a") as archive:
            for name, values in {**moved, CHECKPOINT: np.array(checkpoint)}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
    if checkpoint in _discarded:
        part.unlink(missing_ok=True)


def publish(roster: Roster, rank: int, path: str, checkpoint: str, first: str | None = None) -> str:
    """Let a rank's part file take the place of the file, and remove older part files that were left behind."""
    check_home(roster.workers[rank])
    file = Path(path)
    rename(checkpoint_part(file, checkpoint), file)
    for left_behind in file.parent.glob(checkpoint_part(file, "?" * len(checkpoint)).name):
        left_behind.unlink(missing_ok=True)
    return path


def discard(roster: Roster, rank: int, paths: Sequence[str], checkpoint: str) -> None:
    """Remove the part files of a checkpoint that was given up, now and where one is still being written."""
    check_home(roster.workers[rank])
    _discarded.add(checkpoint)
    for path in paths:
        checkpoint_part(Path(path), checkpoint).unlink(missing_ok=True)
