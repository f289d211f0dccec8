"""Writing files: every writer leaves the older file in place until the new one is complete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from gsparse.bench.records import Run
from gsparse.cli.solve import write_solution
from gsparse.files import WRITTEN, write_file
from gsparse.kernels.cpu import steps
from gsparse.plot.axes import save_picture
from gsparse.writing import new_file, replacing

resource = pytest.importorskip("resource", reason="limits on file sizes need POSIX")

# A matrix that needs more than LIMIT bytes in every kind of file.
RNG = np.random.default_rng(0)
MATRIX = sp.random_array((400, 400), density=0.1, rng=RNG, format="csr")
LIMIT = 4096


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    **{
        f"matrix {ending}": (
            f"A{ending}",
            lambda path, kind=np.int64 if ending == ".iua" else float: write_file(path, (1e3 * MATRIX).astype(kind)),
        )
        for ending in WRITTEN
    },
    "solution .npy": ("x.npy", lambda path: write_solution(path, RNG.standard_normal(9999))),
    "solution .mtx": ("x.mtx", lambda path: write_solution(path, RNG.standard_normal(9999))),
    "figure": ("figure.png", lambda path: save_picture(path, lambda ax: ax.plot(RNG.standard_normal(1000)))),
    "benchmark": ("run.json", lambda path: Run({"name": "x" * 9999}, {}, ()).write(path)),
    "loops of a solver": ("steps.py", lambda path: steps._write_once(path, f"# {'x' * 9999}")),
}


@contextmanager
def full_disk() -> Iterator[None]:
    """Prevent files of this process from growing beyond LIMIT bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("name", WRITERS)
def test_an_older_file_survives_a_full_disk(tmp_path: Path, name: str) -> None:
    file, write = WRITERS[name]
    path = tmp_path / file
    path.write_bytes(b"was there")
    with pytest.raises(OSError, match="File too large"), full_disk():
        write(path)
    assert path.read_bytes() == b"was there"
    write(path)
    assert path.stat().st_size > LIMIT
    assert [entry.name for entry in tmp_path.iterdir()] == [file]


def test_a_block_that_fails_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for older in ([], ["a"]):
        with pytest.raises(KeyboardInterrupt), replacing(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt
        assert [entry.name for entry in tmp_path.iterdir()] == older
        path.write_bytes(b"old")
    assert path.read_bytes() == b"old"


def test_the_older_file_is_there_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.skipif(os.name != "posix", reason="needs links and modes of POSIX")
def test_a_link_is_followed_and_permissions_stay(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    with replacing(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert target.stat().st_mode & 0o777 == 0o640


@pytest.mark.skipif(os.name != "posix", reason="needs links and devices of POSIX")
def test_a_device_is_written_and_not_replaced(tmp_path: Path) -> None:
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    with replacing(link) as file:
        file.write(b"new")
    assert Path(os.devnull).is_char_device()
    with pytest.raises(IsADirectoryError), replacing(tmp_path):
        pass


def test_a_new_file_does_not_overwrite_another(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"other")
    with pytest.raises(FileExistsError), new_file(tmp_path / "a"):
        pass
    assert (tmp_path / "a").read_bytes() == b"other"
