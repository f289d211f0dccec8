"""``doctor``: what is installed on this machine, what is missing, and the command that installs it."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse._version import install_command
from gsparse.cli.common import Command, add_json, print_result, show_elapsed
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, cpu_code_folder, fault_of, gpu_code_folder
from gsparse.device.select import default_device_name, get_device
from gsparse.device.threads import available_cpus, get_num_threads
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix

__all__ = ["COMMAND"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. Its attributes are keys of the JSON that ``doctor --json`` prints.

    Attributes
    ----------
    what : str
        The component, such as "CuPy".
    found : str
        Its version or location, or the reason why it is missing or broken.
    status : {"ok", "missing", "broken"}
    remedy : str
        The command or action that installs or repairs it, or an empty string.
    """

    what: str
    found: str
    status: str = "ok"
    remedy: str = ""


# Optional packages: the module to import, what gsparse uses it for, and the command that installs it.
OPTIONAL = {
    "distributed": ("several GPUs, gsparse.distributed", install_command("dask")),
    "matplotlib": ("pictures, gsparse.plot", install_command("plot")),
    "tqdm": ("progress bars", install_command("progress")),
    "pyamg": ("other multigrid hierarchies for gsparse.linalg.amg", "pip install pyamg"),
    "pymetis": ("partition='metis'", install_command("metis")),
    "nvmath": ("direct solves on the GPU with cuDSS", install_command("direct")),
}

# A driver that supports only older versions of CUDA needs CuPy for CUDA 12.
_CUDA_13 = 13
# Seconds within which nvidia-smi must answer. It may hang if the driver is broken.
_SECONDS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Check everything, and print the results. Return 0 if a product works on at least one device."""
    with show_elapsed("checking the installation, and compiling a product"):
        results = [
            *_check_versions(), *_check_gpu(), *_check_optional_packages(), *_check_compilers(), *_check_caches()
        ]  # fmt: skip
        products = [_check_product(name) for name in ("cpu", "gpu")]
    results += [result for result in products if result is not None]
    works = any(result is not None and result.status == "ok" for result in products)
    print_result({"works": works, "findings": [asdict(result) for result in results]}, _text(results, works), options)
    return 0 if works else 1


def _check_versions() -> Iterator[CheckResult]:
    yield CheckResult("gsparse", f"{gsparse.__version__}, in {Path(gsparse.__file__).parent}")
    yield CheckResult("Python", f"{platform.python_version()}, {platform.platform()}")
    for name in ("numpy", "scipy", "numba"):
        yield CheckResult(name, _version(name))
    yield CheckResult("CPU threads", f"{get_num_threads()} of {available_cpus()} (GSPARSE_NUM_THREADS sets them)")
    yield CheckResult("default device", f"{default_device_name()} (GSPARSE_DEVICE sets it)")


@cache
def _packages_by_module() -> Mapping[str, list[str]]:
    """Return the names of the packages that provide each module. Looking at all packages takes half a second."""
    return packages_distributions()


def _version(module: str) -> str:
    """Return the version of the package that provides a module."""
    packages = _packages_by_module().get(module, [])
    return ", ".join(version(name) if name == module else f"{name} {version(name)}" for name in packages)


# ------------------------------------------------------------------------------------------------------------- GPU


def _check_gpu() -> Iterator[CheckResult]:
    driver = _check_driver()
    yield driver
    if not find_spec("cupy"):
        why = "not installed" + ("" if driver.status == "ok" else "; it is useful only with a GPU")
        yield CheckResult("CuPy", why, "missing", _cupy_remedy(driver.found) if driver.status == "ok" else "")
        return
    try:
        device = get_device("gpu")
    except gsparse.GsparseError as error:
        yield CheckResult("CuPy", f"{_version('cupy')}: {error}", "broken" if driver.status == "ok" else "missing")
        return
    yield CheckResult("CuPy", _version("cupy"))
    yield from _list_gpus(device)
    compiler, collective = _install_commands(device.xp.cuda.runtime)
    yield _check("NVRTC or hipRTC", lambda: ".".join(map(str, device.xp.cuda.nvrtc.getVersion())), compiler)
    yield _check("NCCL or RCCL", _nccl_version, collective)


def _install_commands(runtime: Any) -> tuple[str, str]:
    """Return the commands that install the run-time compiler and the library of collectives."""
    if runtime.is_hip:
        return "apt-get install hip-runtime-amd", "apt-get install rccl"
    major = runtime.runtimeGetVersion() // 1000
    return f"pip install 'cupy-cuda{major}x[ctk]'", f"pip install nvidia-nccl-cu{major}"


def _nccl_version() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's warning repeats at length what the remedy says.
        nccl = import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise ImportError("CuPy does not find the library")
    return str(nccl.get_version())


def _list_gpus(device: Any) -> Iterator[CheckResult]:
    """Name each GPU and the size of its memory."""
    runtime = device.xp.cuda.runtime
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        memory = properties["totalGlobalMem"] / 2**30
        yield CheckResult(f"gpu:{number}", f"{properties['name'].decode()}, {memory:.0f} GiB")


def _check(what: str, describe: Callable[[], str], remedy: str, failure: str = "missing") -> CheckResult:
    """Return what `describe` returns as the result of a check; if it raises, the status of the check is `failure`."""
    try:
        return CheckResult(what, describe())
    except Exception as error:  # An extension module whose library is missing may raise any exception.
        return CheckResult(what, f"not usable: {error}", failure, remedy)


def _check_driver() -> CheckResult:
    """Look for a GPU without using CuPy: with nvidia-smi, or by the device file of AMD's kernel driver."""
    if shutil.which("nvidia-smi"):
        return _ask_nvidia_smi()
    if Path("/dev/kfd").exists():
        return CheckResult("GPU", "AMD, by its kernel driver")
    return CheckResult("GPU", "none found (no nvidia-smi, no /dev/kfd): the CPU is used", "missing")


def _ask_nvidia_smi() -> CheckResult:
    """Return the names of NVIDIA's GPUs, their driver and its version of CUDA."""
    try:
        answer = _run("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
        _, _, cuda = _run("nvidia-smi").stdout.partition("CUDA Version: ")
    except (OSError, subprocess.TimeoutExpired) as error:
        return CheckResult("GPU", f"nvidia-smi fails: {error}", "broken", "repair the driver")
    gpus = "; ".join(
        f"{count} x {gpu}" if count > 1 else gpu for gpu, count in Counter(answer.stdout.splitlines()).items()
    )
    if answer.returncode == 0 and gpus:
        return CheckResult("GPU", f"{gpus}; CUDA {cuda.split()[0] if cuda else '?'}")
    fault = (answer.stdout or answer.stderr).strip()
    return CheckResult("GPU", f"nvidia-smi fails: {fault}", "broken", "repair the driver")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)


def _cupy_remedy(driver: str) -> str:
    """Return the command that installs the CuPy that fits the driver."""
    if driver.startswith("AMD"):
        return install_command("rocm")
    _, _, cuda = driver.rpartition("CUDA ")
    major = cuda.partition(".")[0]
    return install_command("cuda12" if major.isdecimal() and int(major) < _CUDA_13 else "cuda13")


# ----------------------------------------------------------------------------- packages, compilers, caches, products


def _check_optional_packages() -> Iterator[CheckResult]:
    for module, (purpose, remedy) in OPTIONAL.items():
        try:
            import_module(module)
        except Exception as error:  # A package whose own dependencies do not fit may raise any exception.
            absent = isinstance(error, ModuleNotFoundError) and error.name == module
            yield CheckResult(module, f"{purpose}: {error}", "missing" if absent else "broken", remedy)
        else:
            yield CheckResult(module, f"{_version(module)}: {purpose}")


def _check_compilers() -> Iterator[CheckResult]:
    """Look for the compilers of the GPU kernels' emulator, which only tests use: g++, and clang for AMD's 64 lanes."""
    for name in ("g++", "clang"):  # There is no remedy, because users of gsparse do not need them.
        path = shutil.which(name)
        yield CheckResult(name, path or "not found; only gsparse's own tests use it", "ok" if path else "missing")


def _check_caches() -> Iterator[CheckResult]:
    folders = {"gsparse": cache_folder(), "CUDA kernels": gpu_code_folder(), "CPU kernels": cpu_code_folder()}
    for what, folder in folders.items():
        sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
        yield CheckResult(f"cache: {what}", f"{sum(sizes) / 1e6:.1f} MB in {len(sizes)} files, {folder}")
    fault = fault_of(cache_folder()) if cache_folder().is_dir() else ""
    if fault:
        yield CheckResult("cache: not used", fault, "broken")


def _check_product(name: str) -> CheckResult | None:
    """Check a product on a device. Return None if the machine has no such device."""
    try:
        device: Device = get_device(name)
    except gsparse.GsparseError:
        return None
    multiply = partial(_multiply_on, device)
    return _check(f"a product on {device.name}", multiply, "report it, with gsparse doctor --json", "broken")


def _multiply_on(device: Device) -> str:
    S = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(1000, 1000)).tocsr()
    x = np.arange(1000.0)
    if not np.array_equal(GpuSparseMatrix(S, device=device) @ x, S @ x):
        raise RuntimeError("its result is wrong")
    return "its result is correct"


def _text(results: list[CheckResult], works: bool) -> str:
    marks = {"ok": " ", "missing": "-", "broken": "!"}
    lines = [f"{marks[r.status]} {r.what:<26}{r.found}" for r in results]
    remedies = [f"  {r.what:<26}{r.remedy}" for r in results if r.remedy]
    verdict = "products work on this machine" if works else "NO PRODUCT WORKS HERE: see the lines marked with !"
    return "\n".join([*lines, *(["", "to add or repair:", *remedies] if remedies else []), "", verdict])


COMMAND = Command("list what is installed or missing, and how to install it", add_arguments, run)
