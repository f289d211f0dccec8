"""Compare the machine code of every GPU kernel with that of another checkout, without a GPU.

``python -m tests.proof.compare_cubins OLD_TREE`` compiles the catalogue of both trees with NVRTC, as compile_nvidia.py
does. It prints for each kernel template how many instantiations have the very same machine code, and the largest change
of registers, spilled bytes and code size. It lists each kernel that is worse (`is_worse`) or that only one tree has,
and exits with status 1 if there are any.

A change that only makes the sources easier to read should not change the machine code. A few kernels may differ
nevertheless, because the compiler schedules instructions in the order of the source.

Options: ``--architecture sm_90``; ``--only PATTERN`` compares the files that match a regular expression;
``--rename PATTERN REPLACEMENT``, which may be repeated, maps "file: expression" of the old tree to its new name;
``--measure FILE`` only measures this tree and saves the result in FILE, which can be given as OLD_TREE later.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from ctypes import byref, c_size_t, create_string_buffer
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

# Relative growth of registers or code size above which a kernel counts as worse. GPUs allocate registers in steps, so
# the number of registers must also grow beyond its step.
TOLERANCE = 0.03
REGISTER_STEP = 8
# Number of instantiations that are compiled together, small enough that no processor is idle before the end.
KERNELS_PER_JOB = 64


class Code(NamedTuple):
    """The machine code of one kernel, in numbers.

    Attributes
    ----------
    registers : int
        Registers per thread.
    spilled : int
        Spilled bytes per thread.
    size : int
        Bytes of machine code.
    digest : str
        A hash of the machine code.
    """

    registers: int
    spilled: int
    size: int
    digest: str


# The compiled kernels by "file: expression".
Measured = dict[str, Code]


def text_sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the mangled name and the machine code of each kernel in a cubin, which is a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    header_size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    # The header of a section holds the offset of its name, its type, flags, address, offset and size.
    sections = [struct.unpack_from("<IIQQQQ", cubin, table + header_size * number) for number in range(count)]
    for name_offset, _, _, _, offset, size in sections:
        begin = sections[names][4] + name_offset
        name = cubin[begin : cubin.index(b"\0", begin)].decode()
        if name.startswith(".text."):
            yield name.removeprefix(".text."), cubin[offset : offset + size]


def measure_file(architecture: str, source: str, expressions: Sequence[str]) -> Measured:
    """Compile instantiations of one source file, with the options of run time, from the tree that Python imports."""
    from gsparse.device.compilation import compile_options, kernel_source
    from tests.proof import compile_nvidia

    nvrtc = compile_nvidia.load_nvrtc()
    destroy, codes = nvrtc.nvrtcDestroyProgram, {}

    def read_and_destroy(program: Any) -> None:
        size = c_size_t()
        nvrtc.nvrtcGetCUBINSize(program._obj, byref(size))
        cubin = create_string_buffer(size.value)
        nvrtc.nvrtcGetCUBIN(program._obj, cubin)
        codes.update(text_sections(cubin.raw))
        destroy(program)

    # `compile_cubin` destroys the NVRTC program, which holds the machine code. So the code is read just before that.
    # This also works in trees that are older than this file.
    nvrtc.nvrtcDestroyProgram = read_and_destroy
    try:
        options = (
            *compile_options(compile_nvidia.LANES), *compile_nvidia.CUPY_OPTIONS, f"-arch={architecture}",
            "--ptxas-options=-v",
        )  # fmt: skip
        names, log = compile_nvidia.compile_cubin(kernel_source(source), expressions, options)
    finally:
        nvrtc.nvrtcDestroyProgram = destroy
    used, file = compile_nvidia.read_log(log), compile_nvidia.file_of(source)
    return {
        f"{file}: {expression}": Code(*used[name][:2], len(codes[name]), sha256(codes[name]).hexdigest()[:16])
        for expression, name in names.items()
    }


def measure(architecture: str, only: str) -> Measured:
    """Compile the catalogue of the tree that Python imports."""
    from tests.proof import compile_nvidia
    from tests.proof.kernel_usage import file_of, sources_and_expressions

    jobs = [
        (architecture, source, names[first : first + KERNELS_PER_JOB])
        for source, names in sources_and_expressions(compile_nvidia.LANES).items()
        if re.search(only, file_of(source))
        for first in range(0, len(names), KERNELS_PER_JOB)
    ]
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        parts = pool.map(measure_file, *zip(*jobs, strict=True))
        return {name: code for part in parts for name, code in part.items()}


def measure_tree(tree: Path, architecture: str, only: str) -> Measured:
    """Measure another checkout in a process that imports it, or read a saved result."""
    if tree.is_file():
        kernels = {name: Code(*fields) for name, fields in json.loads(tree.read_text()).items()}
        return {name: code for name, code in kernels.items() if re.search(only, name.rpartition(": ")[0])}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "measured.json")
        command = [sys.executable, "-P", __file__, "--measure", str(result), "--architecture", architecture]
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        subprocess.run([*command, "--only", only], cwd=tree, env=environment, check=True)
        return measure_tree(result, architecture, only)


def is_worse(old: Code, new: Code) -> bool:
    """Return whether a kernel takes considerably more registers or machine code, or spills any more bytes."""
    blocks = -(-new.registers // REGISTER_STEP) > -(-old.registers // REGISTER_STEP)
    more_registers = blocks and new.registers > (1 + TOLERANCE) * old.registers
    return more_registers or new.spilled > old.spilled or new.size > (1 + TOLERANCE) * old.size


def report(old: Measured, new: Measured) -> tuple[str, list[str]]:
    """Return a table with a line for each template, and a line for each kernel that is worse or missing."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in old.keys() & new.keys():
        groups[name.partition("<")[0]].append(name)
    header = f"{'kernel':<44} {'count':>6} {'same':>6} {'registers':>12} {'spilled':>8} {'code size':>16}"
    lines = [header]
    for group, names in sorted(groups.items()):
        same = sum(old[name].digest == new[name].digest for name in names)
        registers = [new[name].registers - old[name].registers for name in names]
        spilled = max(new[name].spilled - old[name].spilled for name in names)
        sizes = [new[name].size / old[name].size - 1 for name in names]
        lines.append(
            f"{group:<44} {len(names):>6} {same:>6} {f'{min(registers):+} to {max(registers):+}':>12} {spilled:>+8} "
            f"{f'{min(sizes):+.1%} to {max(sizes):+.1%}':>16}"
        )
    notes = [f"only in one tree: {name}" for name in sorted(old.keys() ^ new.keys())]
    for name in sorted(old.keys() & new.keys()):
        if is_worse(old[name], new[name]):
            notes.append(f"worse: {name}: {old[name][:3]} -> {new[name][:3]} (registers, spilled, code size)")
    return "\n".join(lines), notes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old_tree", type=Path, nargs="?")
    parser.add_argument("--architecture", default="sm_90")
    parser.add_argument("--only", default="")
    parser.add_argument("--rename", nargs=2, action="append", default=[])
    parser.add_argument("--measure", type=Path)
    options = parser.parse_args()
    if options.measure:
        options.measure.write_text(json.dumps(measure(options.architecture, options.only)))
        return
    if options.old_tree is None:
        parser.error("name the checkout to compare with")
    old = measure_tree(options.old_tree.resolve(), options.architecture, options.only)
    for pattern, replacement in options.rename:
        old = {re.sub(pattern, replacement, name): code for name, code in old.items()}
    table, notes = report(old, measure(options.architecture, options.only))
    print(table)
    if notes:
        raise SystemExit("\n".join(notes))


if __name__ == "__main__":
    main()
