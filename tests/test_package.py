"""The package as users install it: the cost of an import, the contents of the wheel, and imports between layers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from gsparse._version import DISTRIBUTION, __version__, install_command

ROOT = Path(__file__).parents[1]

# The time that `import gsparse` may take in addition to SciPy, and modules that it must not import.
IMPORT_SECONDS = 0.3
HEAVY_MODULES = ("cupy", "dask", "distributed", "numba", "matplotlib", "torch", "jax", "mpi4py")


def run(code: str, **environment: str) -> str:
    command, env = [sys.executable, "-c", code], {**os.environ, **environment}
    completed = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


@pytest.mark.timed
def test_import_is_fast_and_loads_no_heavy_module() -> None:
    code = (
        "import sys, time, scipy.sparse.linalg, scipy.io; begin = time.perf_counter(); import gsparse;"
        f"print(time.perf_counter() - begin, [m for m in {HEAVY_MODULES!r} if m in sys.modules])"
    )
    lines = (run(code, COVERAGE_PROCESS_START="") for _ in range(3))  # without coverage, which slows the import down
    seconds, loaded = min((line.split(maxsplit=1) for line in lines), key=lambda line: float(line[0]))
    assert float(seconds) < IMPORT_SECONDS
    assert loaded.strip() == "[]"


def test_functions_that_need_dask_name_the_remedy_without_it() -> None:
    code = (
        "import sys; sys.modules['distributed'] = None\n"  # Python treats None as a package that is not installed
        "import gsparse.distributed as g\n"
        "from gsparse.distributed import *\n"
        "assert g.run_ranks(lambda communicator: communicator.rank, 2) == [0, 1]\n"
        "assert not hasattr(g, 'no_such_name')\n"
        "try: g.distribute\n"
        "except ImportError as error: print(error)"
    )
    assert "distribute needs dask: pip install 'gsparse" in run(code)


def test_the_package_is_built_and_frozen_under_the_name_that_messages_install() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    assert list(project["scripts"]) == ["gsparse"]
    assert f"--exclude {DISTRIBUTION};" in (ROOT / ".ci" / "whole").read_text()
    assert install_command("plot") == "pip install 'gsparse-gpu[plot]'"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = ("gsparse", "pyproject.toml", "setup.py", "README.md", "LICENSE")
    source.mkdir()
    for name in names:  # a copy, because building writes into the source tree
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode and "setuptools" in completed.stderr and "find" in completed.stderr:
        pytest.skip("the build backend cannot be fetched here")
    assert completed.returncode == 0, completed.stderr
    return next(folder.glob("*.whl"))


@pytest.mark.whole
def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    kinds = (".py", ".cu", ".cuh", ".json", "py.typed")
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "gsparse").rglob("*")
        if path.name.endswith(kinds) and "__pycache__" not in path.parts
    }
    assert {"gsparse/py.typed", "gsparse/kernels/gpu/src/port.cuh"} <= ours
    assert ours <= inside
    metadata = f"gsparse_gpu-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in inside} == {"gsparse", metadata}
    assert f"{metadata}/licenses/LICENSE" in inside


def run_python(code: str, folder: Path) -> None:
    """Run a program in a new process, and check that it succeeds."""
    completed = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


@pytest.mark.whole
def test_the_wheel_works_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), str(wheel)], check=True
    )
    code = (
        f"import sys; sys.path.insert(0, {str(target)!r})\n"
        "import gsparse, scipy.sparse, numpy\n"
        f"assert gsparse.__file__.startswith({str(target)!r}), gsparse.__file__\n"
        "from gsparse.device.compilation import kernel_source\n"
        "from gsparse.kernels.gpu import instantiations\n"
        "assert all('GS_WARP' in kernel_source(file) for file, _ in instantiations(32))\n"
        "A = gsparse.GpuSparseMatrix(scipy.sparse.eye_array(5), device='cpu')\n"
        "assert (A @ numpy.ones(5) == 1).all()\n"
    )
    run_python(code, tmp_path)


def test_subpackages_are_imported_on_first_use() -> None:
    code = (
        "import sys, gsparse\n"
        "assert not {'gsparse.linalg', 'gsparse.plot', 'matplotlib', 'dask'} & set(sys.modules)\n"
        "assert {'linalg', 'plot', 'files', 'distributed', 'GpuSparseMatrix'} <= set(dir(gsparse))\n"
        "assert gsparse.linalg.cg and gsparse.plot.distribution and gsparse.files.read_file\n"
        "assert not hasattr(gsparse, 'cg')\n"
    )
    run_python(code, ROOT)
