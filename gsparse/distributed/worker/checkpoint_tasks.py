"""Checkpoints in files. A newer checkpoint replaces an older one as a whole, even if a process ends in between.

A checkpoint is one file for each rank. Each checkpoint has an id of its own, which is stored in all of its files. It is
written over an older checkpoint of the same file names in two phases:

    save       every rank writes its rows to a part file, whose name contains the id, and syncs it to disk
    publish    rank 0 renames its part file to the file's own name; after that, the other ranks rename theirs

The rename by rank 0 is the moment at which the newer checkpoint replaces the older one. It is one atomic operation, and
all part files are complete by then. If a rank ends before its own rename, its part file remains, and readers use the
part file with the id of the first file (`readers.open_files`). Readers refuse files with different ids.
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
from gsparse.distributed.worker.rank import Rank
from gsparse.writing import new_file, rename

# Ids of abandoned checkpoints, whose part files may still be being written by this process.
_discarded: set[str] = set()


def save(rank: Rank, path: str, checkpoint: str, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Save a rank's rows in a part file in SciPy's .npz format, with the checkpoint's id and further arrays."""
    part = checkpoint_part(Path(path), checkpoint)
    part.parent.mkdir(parents=True, exist_ok=True)
    with new_file(part) as file:
        sp.save_npz(file, rank.require_matrix().rows_on_host(), compressed=False)
        with ZipFile(file, "a") as archive:
            for name, values in {**arrays, CHECKPOINT: np.array(checkpoint)}.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, values, allow_pickle=False)
    if checkpoint in _discarded:
        part.unlink(missing_ok=True)


def publish(rank: Rank, path: str, checkpoint: str) -> str:
    """Rename a rank's part file to the file's own name, remove part files of older checkpoints, and return the path.

    The client calls rank 0 first, and the others when it has answered.
    """
    file = Path(path)
    rename(checkpoint_part(file, checkpoint), file)
    for old_part in file.parent.glob(checkpoint_part(file, "?" * len(checkpoint)).name):
        old_part.unlink(missing_ok=True)
    return path


def discard(rank: Rank, paths: Sequence[str], checkpoint: str) -> None:
    """Remove the part files of an abandoned checkpoint; `save` removes those that are still being written."""
    _discarded.add(checkpoint)
    for path in paths:
        checkpoint_part(Path(path), checkpoint).unlink(missing_ok=True)
