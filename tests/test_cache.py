"""The cache contains code that is executed: only its user may write to it, and unexpected contents are no error."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gsparse.cli.doctor import _check_caches
from gsparse.device import cache
from gsparse.device.cache import UntrustedFolderError, cache_folder, make_private
from gsparse.device.compilation import compile_kernel
from gsparse.products.tuning import Timing, recall, remember
from tests.support import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners and modes of files")

# Compile a kernel, write the steps of a solver and store times, under a umask that lets the group write.
PROGRAM = """
import os
os.umask(0o002)
import numpy as np
from gsparse.kernels.cpu.spmm import _copy_rows
from gsparse.kernels.cpu.steps import _module
from gsparse.linalg.krylov.chebyshev import PROGRAM
from gsparse.products.tuning import Timing, remember
_copy_rows(0, 1, np.ones((1, 1)), np.ones((1, 1)))
remember("key", {"ellpack": Timing(1.0, 0.0)})
print(_module(PROGRAM).CHUNK)
"""


# Every file that is longer than 1 kB meets a full disk. The loops of a solver are compiled from no file then.
FULL_DISK = f"""
import numpy as np, resource, warnings
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
warnings.showwarning = lambda message, *_: print(message)
{PROGRAM}
sums = np.zeros((1, 1))
_module(PROGRAM).totals(np.ones((1, 3)), sums)
print(sums[0, 0])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path / "above" / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    cache._warned.clear()
    return cache_folder()


def test_code_of_another_level_of_optimization_is_stored_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_OPT", raising=False)
    usual = cache.cpu_code_folder()
    monkeypatch.setenv("NUMBA_OPT", "1")
    assert cache.cpu_code_folder() != usual
    assert cache.cpu_code_folder().parent == usual.parent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def code_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc", ".py", ".sqlite")]


def test_the_cache_is_private_to_its_user_under_any_umask(folder: Path) -> None:
    assert run_python(PROGRAM, GSPARSE_CACHE_DIR=str(folder), NUMBA_CACHE_DIR="") == "4096"
    assert {path.suffix for path in code_below(folder)} == {".nbi", ".nbc", ".py", ".sqlite"}
    assert [mode(path) for path in (folder, folder / "steps", folder / "cpu", *(folder / "cpu").iterdir())] == [
        0o700
    ] * 4


@pytest.mark.parametrize("bits", [0o775, 0o757])
@pytest.mark.few(1)
def test_a_cache_writable_by_others_is_not_used_and_warns_with_the_remedy(folder: Path, bits: int) -> None:
    folder.mkdir(parents=True)
    folder.chmod(bits)
    assert run_python(PROGRAM, GSPARSE_CACHE_DIR=str(folder), NUMBA_CACHE_DIR="") == "4096"
    assert code_below(folder) == []
    with pytest.warns(
        RuntimeWarning, match=f"its mode is {bits:04o}: .* 'chmod -R go-w {folder}', or set GSPARSE_CACHE"
    ):
        remember("key", {"ellpack": Timing(1.0, 0.0)})
    assert recall("key", ["ellpack"]) is None
    assert ["its mode is" in finding.found for finding in _check_caches() if finding.status == "broken"] == [True]
    folder.chmod(0o755)
    remember("key", {"ellpack": Timing(1.0, 0.0)})
    assert recall("key", ["ellpack"]) == {"ellpack": Timing(1.0, 0.0)}


def test_on_a_full_disk_kernels_are_compiled_without_a_cache_and_one_line_says_so(folder: Path) -> None:
    lines = run_python(FULL_DISK, GSPARSE_CACHE_DIR=str(folder), NUMBA_CACHE_DIR="").splitlines()
    assert lines[0].startswith("compiled code cannot be stored, and is compiled again in each process ([Errno ")
    assert lines[0].endswith("free space on its disk, or set GSPARSE_CACHE_DIR to a folder that can be written")
    assert lines[1:] == ["4096", "3.0"]


def test_a_gpu_kernel_is_compiled_in_memory_where_cupy_cannot_store_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class RawModule:
        def __init__(self, **_: Any) -> None:
            pass

        def get_function(self, name: str) -> str:
            if not os.environ.get("CUPY_CACHE_IN_MEMORY"):
                raise OSError(errno.ENOSPC, "No space left on device")
            return name

    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "")
    with pytest.warns(RuntimeWarning, match=r"No space left.* set CUPY_CACHE_DIR") as warned:
        for name in ("first", "second"):
            assert compile_kernel(SimpleNamespace(RawModule=RawModule), 32, "text of a source", name) == name
    assert len(warned) == 1


def test_a_subfolder_of_the_cache_writable_by_others_is_refused(folder: Path) -> None:
    make_private(folder / "cpu")
    (folder / "cpu").chmod(0o770)
    with pytest.warns(RuntimeWarning, match="writable by its owner alone"), pytest.raises(UntrustedFolderError):
        make_private(folder / "cpu" / "code")


def test_a_cache_of_another_user_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_private(folder)
    owner = folder.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(cache, "_ROOT", -1)
    message = (
        rf"must belong to this user \(ID {owner + 1}\), but it belongs to the user with the ID {owner}: set GSPARSE"
    )
    with pytest.warns(RuntimeWarning, match=message), pytest.raises(UntrustedFolderError, match=message):
        make_private(folder)
