"""``convert``: write a matrix file in another file format."""

from __future__ import annotations

import argparse
from pathlib import Path

from gsparse.cli.common import (
    Command,
    UsageError,
    add_force,
    add_json,
    add_matrix,
    describe,
    print_result,
    read_matrix,
    refuse_overwrite,
    require_folder,
    show_elapsed,
)
from gsparse.files import SUFFIXES, WRITTEN, write_file

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``convert``."""
    add_matrix(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help=f"the file to write: {', '.join(WRITTEN)}")
    parser.add_argument("--out-name", metavar="NAME", help="the variable's name in a .mat file (default: A)")
    add_force(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read the matrix and write it to the output file."""
    if not options.out.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{options.out}: unknown kind of file, gsparse writes {', '.join(WRITTEN)}")
    require_folder("OUT", options.out)
    refuse_overwrite(options.out, options)
    S = read_matrix(options)
    with show_elapsed(f"writing {options.out.name}"):
        write_file(options.out, S, options.out_name)
    size = options.out.stat().st_size
    result = {"in": options.file, "out": options.out, "shape": S.shape, "entries": S.nnz, "dtype": str(S.dtype)}
    print_result({**result, "bytes": size}, f"wrote {options.out}: {describe(S)}, {size / 1e6:.3f} MB", options)
    return 0


COMMAND = Command("write a matrix file in another file format", add_arguments, run)
