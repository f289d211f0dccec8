"""The cache contains code that is executed: only its user may write to it, and unexpected contents are no error."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gsparse.cli.doctor import _check_caches
from gsparse.device import cache
from gsparse.device.cache import UntrustedFolderError, cache_folder, make_private
from gsparse.products.tuning import Timing, recall, remember
from tests.support import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs owners and modes of files")

# Compile a kernel, write the steps of a solver and store times, under a umask that lets the group write.
PROGRAM = """
import os
os.umask(0o002)
from gsparse.kernels.cpu.pool import _spin
from gsparse.kernels.cpu.steps import _module
from gsparse.linalg.krylov.chebyshev import PROGRAM
from gsparse.products.tuning import Timing, remember
_spin(1)
remember("key", {"ellpack": Timing(1.0, 0.0)})
print(_module(PROGRAM).CHUNK)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GSPARSE_CACHE_DIR", str(tmp_path / "above" / "cache"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    cache._warn_once.cache_clear()
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
