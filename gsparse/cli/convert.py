"""``convert``: from one kind of file to another."""

from __future__ import annotations

import argparse
from pathlib import Path

from gsparse.cli.common import (
    Command,
    UsageError,
    add_force,
    add_json,
    add_matrix,
    check_free,
    describe,
    read_matrix,
    show,
    underway,
)
from gsparse.files import SUFFIXES, WRITTEN, write_file

__all__ = ["COMMAND"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``convert``."""
    add_matrix(parser)
    parser.add_argument("out", type=Path, metavar="OUT", help=f"the file to write: {', '.join(WRITTEN)}")
    parser.add_argument("--out-name", metavar="NAME", help="the variable, of a .mat file that is written (default: A)")
    add_force(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Read and write."""
    if not options.out.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{options.out}: unknown kind of file, written are {', '.join(WRITTEN)}")
    check_free(options.out, options)
    S = read_matrix(options)
    with underway(f"writing {options.out.name}"):
        write_file(options.out, S, options.out_name)
    size = options.out.stat().st_size
    found = {"in": options.file, "out": options.out, "shape": S.shape, "entries": S.nnz, "dtype": str(S.dtype)}
    show({**found, "bytes": size}, f"wrote {options.out}: {describe(S)}, {size / 1e6:.3f} MB", options)
    return 0


COMMAND = Command("write a matrix as another kind of file", add_arguments, run)
