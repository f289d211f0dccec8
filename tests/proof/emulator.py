"""`EmulatedModule`: the shape of `cupy.RawModule`, but the `.cu` is compiled for the CPU with `emulator.h`.

Environment
-----------
GSPARSE_EMULATOR_SANITIZER : "", "asan" or "tsan"
    Compiles the kernels with AddressSanitizer and UBSan, or with ThreadSanitizer. Python itself is not instrumented,
    so the runtime has to be preloaded: ``python tests/proof/sanitized.py asan -- tests/...`` does that.
GSPARSE_EMULATOR_CACHE : folder
    Where compiled shared objects are kept; by default in the temporary folder. What is in it may be deleted.
CXX : the compiler, g++ by default.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["SANITIZER", "EmulatedModule", "EmulationError", "Kernel", "kept_source"]

PROOF_FOLDER = Path(__file__).resolve().parent
SOURCE_FOLDER = PROOF_FOLDER.parents[1] / "gsparse" / "kernels" / "gpu" / "src"

SANITIZER = os.environ.get("GSPARSE_EMULATOR_SANITIZER", "")
SANITIZER_OPTIONS = {
    "": ("-Og",),  # compiles in two thirds of the time of -O1 and runs three quarters as fast: tests mostly compile
    "asan": ("-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "tsan": ("-O1", "-g1", "-fsanitize=thread"),
}
# Hidden: with default visibility g++ would unify the emulator's thread-local state over all modules of the process.
COMPILE_OPTIONS = (
    "-std=c++17", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", "-DGS_EMU",
)  # fmt: skip

SHARED_MEMORY_LIMIT = 48 << 10  # bytes a block, what CUDA grants without asking (AMD: 64 KiB)
MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA's; HIP's are no smaller
MAX_ERROR_BYTES = 400
# Templates compile at about 100 a second: a file with more instantiations is compiled in parts, side by side.
MAX_KERNELS_PER_PART = 64

Kernel = Callable[..., None]


class EmulationError(RuntimeError):
    """The kernel did what no GPU kernel may do, or did not compile."""


class EmulatedModule:
    """A `.cu` file compiled for the CPU.

    Parameters
    ----------
    path : path
        The `.cu` file.
    name_expressions : sequence of str
        Every kernel that `get_function` will be asked for, templates with their arguments.
    lanes : {32, 64}
        Lanes of a warp.
    sanitizer : {"", "asan", "tsan"}
    seed : int
        Order in which the threads of a block run: 0 as numbered, 1 reversed, others shuffled, another way each.
    os_threads : int
        Blocks that run at a time.
    options : sequence of str
        Further options to the compiler.
    """

    def __init__(
        self,
        path: str | Path,
        name_expressions: Sequence[str],
        lanes: int,
        sanitizer: str = SANITIZER,
        seed: int = 0,
        os_threads: int = 1,
        options: Sequence[str] = (),
        shared_memory_limit: int = SHARED_MEMORY_LIMIT,
    ) -> None:
        self.seed = seed
        self.os_threads = os_threads
        self.shared_memory_limit = shared_memory_limit
        names = list(dict.fromkeys(name_expressions))
        num_parts = -(-len(names) // MAX_KERNELS_PER_PART)
        parts = [names[part::num_parts] for part in range(num_parts)]
        command = [
            os.environ.get("CXX", "g++"), *COMPILE_OPTIONS, *SANITIZER_OPTIONS[sanitizer], f"-DGS_WARP={lanes}",
            f"-I{SOURCE_FOLDER}", f"-I{PROOF_FOLDER}", *options,
        ]  # fmt: skip
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(functools.partial(_shared_object, Path(path), command), parts))
        self._kernels: dict[str, tuple[ctypes.CDLL, int, list[str]]] = {}
        for part, shared_object in zip(parts, objects, strict=True):
            library = _load(shared_object)
            for number, name in enumerate(part):
                self._kernels[name] = (library, number, library.gs_emu_signature(number).decode().split())

    def get_function(self, name: str) -> Kernel:
        """Give the kernel as a callable ``(grid, block, args, shared_mem=0, seed=None)``."""
        if name not in self._kernels:
            raise EmulationError(f"no kernel {name!r} in this module; it has {sorted(self._kernels)}")
        return functools.partial(self._launch, name)

    def _launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any],
        shared_mem: int = 0,
        seed: int | None = None,
    ) -> None:
        library, number, signature = self._kernels[name]
        if len(args) != len(signature):
            raise EmulationError(f"{name} takes {len(signature)} arguments ({' '.join(signature)}), not {len(args)}")
        packed = [_pack(name, position, *pair) for position, pair in enumerate(zip(args, signature, strict=True))]
        error = ctypes.create_string_buffer(MAX_ERROR_BYTES)
        if library.gs_emu_launch(
            number, _dimensions(name, grid), _dimensions(name, block), shared_mem, self.shared_memory_limit,
            self.seed if seed is None else seed, self.os_threads,
            (ctypes.c_void_p * len(packed))(*(p.ctypes.data for p in packed)), error, MAX_ERROR_BYTES,
        ):  # fmt: skip
            raise EmulationError(f"{name}: {error.value.decode()}")


def _pack(name: str, position: int, value: Any, code: str) -> np.ndarray[Any, Any]:
    """Give memory that holds the argument as the kernel reads it: a scalar's bytes, or an array's address."""
    if value is None and code.endswith("*"):
        return np.array(0, dtype=np.uintp)
    is_array = isinstance(value, np.ndarray)
    if not is_array and not isinstance(value, np.generic):
        raise EmulationError(f"{name}: argument {position} is a {type(value).__name__}: pass a sized NumPy scalar")
    came = f"{value.dtype.kind}{value.dtype.itemsize}" + "*" * is_array
    is_table = code == "c32*" and came == "i4*"  # (struct Chunk, long_rows.cuh)
    if came != code and not is_table and not (code == "v*" and is_array):
        raise EmulationError(f"{name}: argument {position} has to be {code}, but {came} came")
    return np.array(value.ctypes.data, dtype=np.uintp) if is_array else np.array(value)


def _dimensions(name: str, shape: Sequence[int]) -> ctypes.Array[ctypes.c_uint]:
    """Give (x, y, z) as CUDA would take it, or refuse it as CUDA would."""
    full = (*shape, 1, 1)[:3]
    if any(not 0 < size <= most for size, most in zip(full, MAX_GRID, strict=True)):
        raise EmulationError(f"{name}: a grid or block of {tuple(shape)} is an invalid configuration")
    return (ctypes.c_uint * 3)(*full)


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.gs_emu_signature.restype = ctypes.c_char_p
    library.gs_emu_launch.argtypes = [
        ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_uint64,
        ctypes.c_uint, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    return library


def kept_source(text: str) -> Path:
    """Keep a generated source in the cache, under a name that depends on nothing but its text.

    The name is part of what is compiled: under a name of its own, each thread and each process would compile it again.
    """
    path = _cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.cu"
    if not path.exists():  # written under another name and moved: another thread may be about to read it
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder, path.name)
            written.write_text(text)
            written.replace(path)
    return path


def _shared_object(path: Path, command: list[str], names: list[str]) -> Path:
    """Compile `names` out of the file, unless what would come out lies in the cache."""
    table = ", ".join(f'gs_emu::entry("{name}", &{name})' for name in names)
    unit = f'#include "{path}"\nGS_EMU_TABLE({table})\n'
    key = hashlib.sha256("\0".join([unit, *command, _compiler_version(command[0])]).encode())
    for source in (path, *_headers(path.parent), *_headers(SOURCE_FOLDER), *_headers(PROOF_FOLDER)):
        key.update(source.read_bytes())
    shared_object = _cache_folder() / f"{path.stem}-{key.hexdigest()[:24]}.so"
    with shared_object.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker of pytest may be compiling the same: then its result will do
        if not shared_object.exists():
            _compile(command, unit, shared_object)
    return shared_object


def _compile(command: list[str], unit: str, shared_object: Path) -> None:
    # Compiled under another name and moved: this process may be interrupted.
    with tempfile.TemporaryDirectory(dir=shared_object.parent) as folder:
        made = Path(folder, "kernels.so")
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # no sanitized g++
        full = [*command, "-x", "c++", "-", "-o", str(made)]
        result = subprocess.run(full, input=unit, text=True, capture_output=True, env=environment, check=False)
        if result.returncode:
            raise EmulationError(f"{shared_object.stem} does not compile:\n{result.stderr}")
        made.replace(shared_object)


def _headers(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in (".h", ".cuh"))


@functools.cache
def _compiler_version(compiler: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, env=environment).stdout


@functools.cache
def _cache_folder() -> Path:
    default = Path(tempfile.gettempdir(), f"gsparse-emulator-{os.getuid()}")
    folder = Path(os.environ.get("GSPARSE_EMULATOR_CACHE", default))
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # what is in it will be loaded and run
        raise EmulationError(f"{folder} belongs to another user; set GSPARSE_EMULATOR_CACHE to a folder of your own")
    return folder
