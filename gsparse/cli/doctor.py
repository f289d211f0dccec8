"""``doctor``: what this machine has, what it lacks, and the command that installs it."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse.cli.common import Command, add_json, show, underway
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, cpu_code_folder, fault_of
from gsparse.device.select import get_device
from gsparse.device.threads import available_cpus, get_num_threads
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["COMMAND"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked for.

    Attributes
    ----------
    what : str
    found : str
        What there is, or why there is not.
    status : {"ok", "missing", "broken"}
    remedy : str
        The command that changes it.
    """

    what: str
    found: str
    status: str = "ok"
    remedy: str = ""


# Optional packages: what to import, what it is for, and what installs it.
OPTIONAL = {
    "distributed": ("several GPUs, gsparse.distributed", "pip install 'gsparse[dask]'"),
    "matplotlib": ("pictures, gsparse.plot", "pip install 'gsparse[plot]'"),
    "tqdm": ("progress bars", "pip install 'gsparse[progress]'"),
    "pyamg": ("algebraic multigrid, gsparse.linalg.amg", "pip install pyamg"),
    "pymetis": ("partition='metis'", "pip install 'gsparse[metis]'"),
}

# Below this version of CUDA a driver runs CuPy for CUDA 12 only.
_CUDA_13 = 13


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Look at everything; 0 where a product works on what there is."""
    with underway("looking around, and compiling a product"):
        findings = [*_versions(), *_gpu(), *_optional(), *_compilers(), *_caches()]
        products = [_product(name) for name in ("cpu", "gpu")]
    findings += [finding for finding in products if finding is not None]
    works = any(finding is not None and finding.status == "ok" for finding in products)
    show({"works": works, "findings": [asdict(finding) for finding in findings]}, _text(findings, works), options)
    return 0 if works else 1


def _versions() -> Iterator[Finding]:
    yield Finding("gsparse", f"{gsparse.__version__}, in {Path(gsparse.__file__).parent}")
    yield Finding("Python", f"{platform.python_version()}, {platform.platform()}")
    for name in ("numpy", "scipy", "numba"):
        yield Finding(name, _version(name))
    yield Finding("CPU threads", f"{get_num_threads()} of {available_cpus()} (GSPARSE_NUM_THREADS sets them)")


def _version(module: str) -> str:
    """Give the version of the package that a module comes with."""
    packages = packages_distributions().get(module, [])
    return ", ".join(version(name) if name == module else f"{name} {version(name)}" for name in packages)


# ------------------------------------------------------------------------------------------------------------- GPU


def _gpu() -> Iterator[Finding]:
    driver = _driver()
    yield driver
    if not find_spec("cupy"):
        why = "not installed" + ("" if driver.status == "ok" else "; it is of use with a GPU only")
        yield Finding("CuPy", why, "missing", _cupy_remedy(driver.found) if driver.status == "ok" else "")
        return
    try:
        device = get_device("gpu")
    except gsparse.GsparseError as error:
        yield Finding("CuPy", f"{_version('cupy')}: {error}", "broken" if driver.status == "ok" else "missing")
        return
    yield Finding("CuPy", _version("cupy"))
    yield from _devices(device)
    compiler, collective = _installers(device.xp.cuda.runtime)
    yield _library("NVRTC or hipRTC", lambda: ".".join(map(str, device.xp.cuda.nvrtc.getVersion())), compiler)
    yield _library("NCCL or RCCL", _nccl_version, collective)


def _installers(runtime: Any) -> tuple[str, str]:
    """Give the commands that install the run-time compiler and the collective library."""
    if runtime.is_hip:
        return "apt-get install hip-runtime-amd", "apt-get install rccl"
    major = runtime.runtimeGetVersion() // 1000
    return f"pip install 'cupy-cuda{major}x[ctk]'", f"pip install nvidia-nccl-cu{major}"


def _nccl_version() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # (CuPy's, which says at length what the remedy says here)
        nccl = import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise ImportError("CuPy finds no such library")
    return str(nccl.get_version())


def _devices(device: Any) -> Iterator[Finding]:
    """Name each GPU and its memory."""
    runtime = device.xp.cuda.runtime
    for number in range(runtime.getDeviceCount()):
        known = runtime.getDeviceProperties(number)
        yield Finding(f"gpu:{number}", f"{known['name'].decode()}, {known['totalGlobalMem'] / 2**30:.0f} GiB")


def _library(what: str, ask: Callable[[], str], remedy: str) -> Finding:
    try:
        return Finding(what, ask())
    except Exception as error:  # (of an extension module that may lack its library: whatever the loader raises)
        return Finding(what, f"not usable: {error}", "missing", remedy)


def _driver() -> Finding:
    """Find a GPU without CuPy: by what its driver brings along."""
    if shutil.which("nvidia-smi"):
        asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
        head = subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False, timeout=60).stdout
        _, _, cuda = head.partition("CUDA Version: ")
        if said.returncode == 0 and said.stdout.strip():
            return Finding("GPU", f"{said.stdout.strip()}; CUDA {cuda.split()[0] if cuda else '?'}")
        return Finding("GPU", f"nvidia-smi fails: {said.stdout or said.stderr}".strip(), "broken", "mend the driver")
    if Path("/dev/kfd").exists():
        return Finding("GPU", "AMD, by its kernel driver")
    return Finding("GPU", "none found (no nvidia-smi, no /dev/kfd): the CPU is used", "missing")


def _cupy_remedy(driver: str) -> str:
    """Give the command that installs CuPy for the driver there is."""
    if driver.startswith("AMD"):
        return "pip install 'gsparse[rocm]'"
    _, _, cuda = driver.rpartition("CUDA ")
    major = cuda.partition(".")[0]
    return f"pip install 'gsparse[cuda{12 if major.isdecimal() and int(major) < _CUDA_13 else 13}]'"


# ------------------------------------------------------------------------------------------------------- the rest


def _optional() -> Iterator[Finding]:
    for module, (purpose, remedy) in OPTIONAL.items():
        try:
            import_module(module)
        except ImportError as error:
            absent = isinstance(error, ModuleNotFoundError)
            yield Finding(module, f"{purpose}: {error}", "missing" if absent else "broken", remedy)
        else:
            yield Finding(module, f"{_version(module)}: {purpose}")


def _compilers() -> Iterator[Finding]:
    """Find what only tests need: the emulator of GPU kernels compiles with g++, for AMD with clang."""
    for name in ("g++", "clang"):  # (no remedy: whoever uses gsparse lacks nothing without them)
        path = shutil.which(name)
        yield Finding(name, path or "not there; only gsparse's own tests use it", "ok" if path else "missing")


def _caches() -> Iterator[Finding]:
    home = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
    for what, folder in (("gsparse", cache_folder()), ("CUDA kernels", home), ("CPU kernels", cpu_code_folder())):
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        yield Finding(f"cache: {what}", f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} files, {folder}")
    fault = fault_of(cache_folder()) if cache_folder().is_dir() else ""
    if fault:
        yield Finding("cache: not used", fault, "broken")


def _product(name: str) -> Finding | None:
    """Multiply on a device; None where there is no such device."""
    try:
        device: Device = get_device(name)
    except gsparse.GsparseError:
        return None
    multiply = partial(_multiplied, device)
    return _library(f"a product on {device.name}", multiply, "report it, with gsparse doctor --json")


def _multiplied(device: Device) -> str:
    S = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(1000, 1000)).tocsr()
    x = np.arange(1000.0)
    if not np.array_equal(GpuSparseMatrix(S, device=device) @ x, S @ x):
        raise RuntimeError("its result is wrong")
    return "right"


def _text(findings: list[Finding], works: bool) -> str:
    marks = {"ok": " ", "missing": "-", "broken": "!"}
    lines = [f"{marks[f.status]} {f.what:<26}{f.found}" for f in findings]
    remedies = [f"  {f.what:<26}{f.remedy}" for f in findings if f.remedy]
    verdict = "products work on what is here" if works else "NO PRODUCT WORKS HERE: see the lines marked with !"
    return "\n".join([*lines, *(["", "to add what is missing:", *remedies] if remedies else []), "", verdict])


COMMAND = Command("tell what was found, what is missing, and what installs it", add_arguments, run)
