"""``doctor``: list what is installed on this machine, what is missing, and the commands that install it."""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import gsparse
from gsparse._version import install_command
from gsparse.cli.common import Command, add_json, print_result
from gsparse.device.base import Device
from gsparse.device.cache import cache_folder, cpu_code_folder, fault_of, gpu_code_folder
from gsparse.device.select import default_device_name, get_device
from gsparse.device.threads import available_cpus, get_num_threads
from gsparse.matrix.gpu_sparse_matrix import GpuSparseMatrix


@dataclass(frozen=True)
class CheckResult:
    """The result of one check. Its attributes are keys of the JSON that ``doctor --json`` prints.

    Attributes
    ----------
    what : str
        The component, such as "CuPy".
    found : str
        The version or location of the component, or the reason why it is missing or broken.
    status : {"ok", "missing", "broken"}
    remedy : str
        The command or action that installs or repairs the component, or an empty string.
    """

    what: str
    found: str
    status: str = "ok"
    remedy: str = ""


# Optional packages: the module, its purpose in gsparse, and the command that installs it.
OPTIONAL = {
    "distributed": ("several GPUs, gsparse.distributed", install_command("dask")),
    "matplotlib": ("pictures, gsparse.plot", install_command("plot")),
    "tqdm": ("progress bars", install_command("progress")),
    "pyamg": ("other multigrid hierarchies for gsparse.linalg.amg", "pip install pyamg"),
    "pymetis": ("partition='metis'", install_command("metis")),
    "nvmath": ("direct solves on the GPU with cuDSS", install_command("direct")),
}

# Time limit, in seconds, for nvidia-smi, which may hang if the driver is broken.
_SECONDS = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Run all checks, and print the results. Return 0 if a product works on at least one device, else 1."""
    results = [*_check_versions(), *_check_gpu(), *_check_optional_packages(), *_check_caches()]
    products = [result for name in ("cpu", "gpu") if (result := _check_product(name)) is not None]
    works = any(result.status == "ok" for result in products)
    results += products
    print_result({"works": works, "findings": [asdict(result) for result in results]}, _text(results, works), options)
    return 0 if works else 1


def _check_versions() -> Iterator[CheckResult]:
    yield CheckResult("gsparse", f"{gsparse.__version__}, in {Path(gsparse.__file__).parent}")
    yield CheckResult("Python", f"{platform.python_version()}, {platform.platform()}")
    for name in ("numpy", "scipy", "numba"):
        yield CheckResult(name, version(name))
    yield CheckResult("CPU threads", f"{get_num_threads()} of {available_cpus()} (GSPARSE_NUM_THREADS sets them)")
    yield CheckResult("default device", f"{default_device_name()} (GSPARSE_DEVICE sets it)")


# ------------------------------------------------------------------------------------------------------------- GPU


def _check_gpu() -> Iterator[CheckResult]:
    driver = _check_driver()
    yield driver
    try:
        device = get_device("gpu")
    except gsparse.GsparseError as error:
        has_gpu = driver.status == "ok"
        status = "broken" if has_gpu and find_spec("cupy") else "missing"
        yield CheckResult("CuPy", str(error), status, _cupy_remedy(driver.found) if has_gpu else "")
        return
    cupy, runtime = device.xp, device.xp.cuda.runtime
    yield CheckResult("CuPy", cupy.__version__)
    for number in range(runtime.getDeviceCount()):
        properties = runtime.getDeviceProperties(number)
        memory = properties["totalGlobalMem"] / 2**30
        yield CheckResult(f"gpu:{number}", f"{properties['name'].decode()}, {memory:.0f} GiB")
    major = runtime.runtimeGetVersion() // 1000
    nvidias = f"pip install 'cupy-cuda{major}x[ctk]'", f"pip install nvidia-nccl-cu{major}"
    amds = "apt-get install hip-runtime-amd", "apt-get install rccl"
    compiler, collective = amds if runtime.is_hip else nvidias
    yield _check("NVRTC or hipRTC", lambda: ".".join(map(str, cupy.cuda.nvrtc.getVersion())), compiler)
    yield _check("NCCL or RCCL", _nccl_version, collective)


def _nccl_version() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy's long warning repeats the remedy.
        nccl = import_module("cupy.cuda.nccl")
    if not nccl.available:
        raise ImportError("CuPy does not find the library")
    return str(nccl.get_version())


def _check(what: str, describe: Callable[[], str], remedy: str, failure: str = "missing") -> CheckResult:
    """Return a check with the text ``describe()``. If `describe` raises, return the status `failure` and `remedy`."""
    try:
        return CheckResult(what, describe())
    except Exception as error:  # an extension module whose library is missing may raise any exception
        return CheckResult(what, f"not usable: {error}", failure, remedy)


def _check_driver() -> CheckResult:
    """Look for a GPU without CuPy: with nvidia-smi, or by the device file of AMD's kernel driver."""
    if not shutil.which("nvidia-smi"):
        if Path("/dev/kfd").exists():
            return CheckResult("GPU", "AMD, by its kernel driver")
        return CheckResult("GPU", "none found (no nvidia-smi, no /dev/kfd): the CPU is used", "missing")
    run = partial(subprocess.run, capture_output=True, text=True, check=True, timeout=_SECONDS)
    try:
        answer = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).stdout
        _, _, cuda = run(["nvidia-smi"]).stdout.partition("CUDA Version: ")
    except (OSError, subprocess.SubprocessError) as error:
        fault = getattr(error, "stdout", "") or error
        return CheckResult("GPU", f"nvidia-smi fails: {fault}", "broken", "repair the driver")
    found = "; ".join(f"{count} x {gpu}" for gpu, count in Counter(answer.splitlines()).items())
    return CheckResult("GPU", f"{found}; CUDA {cuda.split()[0] if cuda else '?'}")


def _cupy_remedy(driver: str) -> str:
    """Return the command that installs CuPy for this driver."""
    if driver.startswith("AMD"):
        return install_command("rocm")
    _, _, cuda = driver.rpartition("CUDA ")
    return install_command("cuda12" if cuda.startswith("12.") else "cuda13")


# ---------------------------------------------------------------------------------------- packages, caches, products


def _check_optional_packages() -> Iterator[CheckResult]:
    for module, (purpose, remedy) in OPTIONAL.items():
        try:
            found = getattr(import_module(module), "__version__", "installed")
        except Exception as error:  # a package with unsuitable dependencies may raise any exception
            absent = isinstance(error, ModuleNotFoundError) and error.name == module
            yield CheckResult(module, f"{purpose}: {error}", "missing" if absent else "broken", remedy)
        else:
            yield CheckResult(module, f"{found}: {purpose}")


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
