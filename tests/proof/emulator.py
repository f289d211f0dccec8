"""`EmulatedModule`: a replacement of `cupy.RawModule` that compiles a `.cu` file for the CPU, with `emulator.h`.

Environment
-----------
GSPARSE_EMULATOR_SANITIZER : "", "asan" or "tsan"
    Compiles the kernels with AddressSanitizer and UBSan, or with ThreadSanitizer. Python itself is not instrumented,
    so the runtime has to be preloaded: ``python tests/proof/sanitized.py asan -- tests/...`` does that.
GSPARSE_EMULATOR_CACHE : folder
    The folder of compiled shared objects, by default in the temporary folder. Its contents may be deleted.
CXX : command
    The compiler, g++ by default.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

if sys.platform != "win32":  # where modules that import this one are collected, but nothing is emulated
    import fcntl

__all__ = ["SANITIZER", "EmulatedModule", "EmulationError", "Kernel", "kept_source"]

PROOF_FOLDER = Path(__file__).resolve().parent
SOURCE_FOLDER = PROOF_FOLDER.parents[1] / "gsparse" / "kernels" / "gpu" / "src"

SANITIZER = os.environ.get("GSPARSE_EMULATOR_SANITIZER", "")
SANITIZER_OPTIONS = {
    # -Og compiles in two thirds of the time of -O1. The code takes a third longer, but tests mostly compile.
    "": ("-Og",),
    "asan": ("-Og", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
    "tsan": ("-O1", "-g1", "-fsanitize=thread"),
}
# With default visibility, a module would use functions and variables of another one that have the same name.
COMPILE_OPTIONS = (
    "-std=c++17", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror",
    "-Wno-unknown-pragmas", "-DGS_EMU",
)  # fmt: skip

SHARED_MEMORY_LIMIT = 48 << 10  # bytes per block that CUDA grants without a special request (AMD: 64 KiB)
# CUDA's limits; those of HIP are not smaller.
MAX_GRID, MAX_BLOCK = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
MAX_TEXT_BYTES = 400
# The number of kernels that are compiled together. Starting the compiler and reading the headers takes 0.2 s, and each
# kernel adds 0.01 to 0.05 s. A file with more instantiations is compiled in parts, each when a kernel of it is used.
MAX_KERNELS_PER_PART = 24

RUNTIME, HEADER = "libemulator.so", "first.h"  # in the folder of `_prepared`

Kernel = Callable[..., None]


class EmulationError(RuntimeError):
    """A kernel did not compile, or did something that is an error on a GPU."""


class EmulatedModule:
    """A `.cu` file compiled for the CPU.

    Parameters
    ----------
    path : path
        The `.cu` file.
    name_expressions : sequence of str
        All kernels for `get_function`; templates with their arguments. Neighbours in this sequence are compiled
        together.
    lanes : {32, 64}
        Lanes of a warp.
    sanitizer : {"", "asan", "tsan"}
    seed : int
        The order in which the threads of a block run: 0 stands for ascending, 1 for descending, any other number for a
        random order of its own.
    os_threads : int
        Number of blocks that run at the same time; 0 stands for all blocks of a launch.
    options : sequence of str
        Further options of the compiler.
    shared_memory_limit : int
        Bytes of shared memory that a block may use.
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
        self._path = Path(path)
        self._command = [
            os.environ.get("CXX", "g++"), *COMPILE_OPTIONS, *SANITIZER_OPTIONS[sanitizer], f"-DGS_WARP={lanes}",
            f"-I{SOURCE_FOLDER}", f"-I{PROOF_FOLDER}", *options,
        ]  # fmt: skip
        self._runtime = _load_runtime(_prepared(tuple(self._command)) / RUNTIME)
        names = list(dict.fromkeys(name_expressions))
        starts = range(0, len(names), MAX_KERNELS_PER_PART)
        self._parts = [names[start : start + MAX_KERNELS_PER_PART] for start in starts]
        self._part_of = {name: number for number, part in enumerate(self._parts) for name in part}
        self._kernels: dict[str, tuple[int, list[str]]] = {}  # the address of the entry, and the parameters
        if len(self._parts) == 1:
            self._compile_part(0)

    def _compile_part(self, number: int) -> None:
        library, runtime = _load(_shared_object(self._path, self._command, self._parts[number])), self._runtime
        for place, name in enumerate(self._parts[number]):
            entry, text = library.gs_emu_entry(place), ctypes.create_string_buffer(MAX_TEXT_BYTES)
            runtime.gs_emu_signature(entry, text, MAX_TEXT_BYTES)
            self._kernels[name] = (entry, text.value.decode().split())

    def compile_all(self) -> None:
        """Compile all parts that have not been compiled yet, as many at a time as there are processors."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._compile_part, range(len(self._parts))))

    def get_function(self, name: str) -> Kernel:
        """Return the kernel as a callable ``(grid, block, args, shared_mem=0, seed=None)``. Compile it if necessary."""
        if name not in self._part_of:
            raise EmulationError(f"no kernel {name!r} in this module; it has {sorted(self._part_of)}")
        if name not in self._kernels:
            self._compile_part(self._part_of[name])
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
        entry, signature = self._kernels[name]
        if len(args) != len(signature):
            raise EmulationError(f"{name} takes {len(signature)} arguments ({' '.join(signature)}), not {len(args)}")
        packed = [_pack(name, position, *pair) for position, pair in enumerate(zip(args, signature, strict=True))]
        error = ctypes.create_string_buffer(MAX_TEXT_BYTES)
        if self._runtime.gs_emu_launch(
            entry, (ctypes.c_void_p * len(packed))(*(p.ctypes.data for p in packed)),
            _dimensions(name, grid, MAX_GRID), _dimensions(name, block, MAX_BLOCK), shared_mem,
            self.shared_memory_limit, self.seed if seed is None else seed, self.os_threads, error, MAX_TEXT_BYTES,
        ):  # fmt: skip
            raise EmulationError(f"{name}: {error.value.decode()}")


def _pack(name: str, position: int, value: Any, code: str) -> np.ndarray[Any, Any]:
    """Return memory with an argument as the kernel reads it: the bytes of a scalar, or the address of an array."""
    if value is None and code.endswith("*"):
        return np.array(0, dtype=np.uintp)
    is_array = isinstance(value, np.ndarray)
    if not is_array and not isinstance(value, np.generic):
        raise EmulationError(f"{name}: argument {position} is a {type(value).__name__}: pass a sized NumPy scalar")
    came = f"{value.dtype.kind}{value.dtype.itemsize}" + "*" * is_array
    # An array of struct Chunk (long_rows.cuh) or of struct Letter (exchange.cu).
    is_table = code == "c32*" and came in ("i4*", "i8*")
    if came != code and not is_table and not (code == "v*" and is_array):
        raise EmulationError(f"{name}: argument {position} must be {code}, got {came}")
    return np.array(value.ctypes.data, dtype=np.uintp) if is_array else np.array(value)


def _dimensions(name: str, shape: Sequence[int], limits: Sequence[int]) -> ctypes.Array[ctypes.c_uint]:
    """Return the three dimensions of a grid or block; refuse any that is 0 or beyond its limit."""
    full = (*shape, 1, 1)[:3]
    if any(not 0 < size <= most for size, most in zip(full, limits, strict=True)):
        raise EmulationError(f"{name}: a grid or block of {tuple(shape)} is an invalid configuration")
    return (ctypes.c_uint * 3)(*full)


@functools.cache
def _load(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.gs_emu_entry.restype = ctypes.c_void_p
    return library


@functools.cache
def _load_runtime(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    library.gs_emu_signature.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.gs_emu_launch.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
        ctypes.c_uint64, ctypes.c_uint, ctypes.c_char_p, ctypes.c_size_t,
    ]  # fmt: skip
    return library


def kept_source(text: str) -> Path:
    """Save a generated source in the cache, under a name that depends on its text only.

    The name is a part of the compiled code. If each process chose another name, each would compile the source again.
    """
    path = _cache_folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.cu"
    if not path.exists():
        # It is written under another name and then renamed, because another thread may be about to read it.
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder, path.name)
            written.write_text(text)
            written.replace(path)
    return path


@functools.cache
def _prepared(command: tuple[str, ...]) -> Path:
    """Return a folder with what all sources need that this command compiles: the runtime, and the precompiled header.

    The header saves a third of the time in which a kernel compiles. With a sanitizer, it is not precompiled.
    """
    key = hashlib.sha256("\0".join([*command, _compiler_version(command[0])]).encode())
    for name in ("emulator.h", "emulator.cpp"):
        key.update((PROOF_FOLDER / name).read_bytes())
    folder = _cache_folder() / f"runtime-{key.hexdigest()[:24]}"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / RUNTIME).exists():
            # The modules call the runtime, so its functions are visible.
            options = [option for option in command if option != "-fvisibility=hidden"]
            if not _is_sanitized(command):
                # The runtime is compiled once and used by each step of a kernel, so it is optimized more than a kernel.
                options.append("-O2")
                (folder / HEADER).write_text("#include <emulator.h>\n")
                header = [option for option in command if option != "-shared"]
                _run_compiler([*header, "-x", "c++-header", str(folder / HEADER)], "", folder / f"{HEADER}.gch")
            _run_compiler([*options, str(PROOF_FOLDER / "emulator.cpp")], "", folder / RUNTIME)
    return folder


def _is_sanitized(command: Sequence[str]) -> bool:
    return any(option.startswith("-fsanitize") for option in command)


def _shared_object(path: Path, command: list[str], names: list[str]) -> Path:
    """Compile these kernels of the file, unless the result is in the cache."""
    table = ", ".join(f"gs_emu::entry(&{name}, GS_LARGEST_BLOCK)" for name in names)
    unit = f'#include "{path}"\nGS_EMU_TABLE({table})\n'
    prepared = _prepared(tuple(command))
    key = hashlib.sha256("\0".join([unit, *command, str(prepared)]).encode())
    for source in (path, *_headers(path.parent), *_headers(SOURCE_FOLDER), *_headers(PROOF_FOLDER)):
        key.update(source.read_bytes())
    shared_object = _cache_folder() / f"{path.stem}-{key.hexdigest()[:24]}.so"
    with shared_object.with_suffix(".lock").open("w") as lock:
        # If another worker of pytest is compiling the same file, this waits for it, and then uses its result.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not shared_object.exists():
            header = [] if _is_sanitized(command) else ["-include", str(prepared / HEADER)]
            options = [command[0], *header, *command[1:]]
            # The module finds the runtime by its path, because the runtime has no other name.
            _run_compiler([*options, "-x", "c++", "-", "-x", "none", str(prepared / RUNTIME)], unit, shared_object)
    return shared_object


def _run_compiler(command: list[str], source: str, output: Path) -> None:
    # It is compiled under another name and then moved, because this process may be interrupted.
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        made = Path(folder, output.name)
        # Without LD_PRELOAD, the compiler itself does not run under the sanitizer.
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        full = [*command, "-o", str(made)]
        result = subprocess.run(full, input=source, text=True, capture_output=True, env=environment, check=False)
        if result.returncode:
            raise EmulationError(f"{output.stem} does not compile:\n{result.stderr}")
        made.replace(output)


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
    if folder.stat().st_uid != os.getuid():  # because its contents are loaded and run
        raise EmulationError(f"{folder} belongs to another user; set GSPARSE_EMULATOR_CACHE to a folder of your own")
    return folder
