"""What commands have in common: arguments, input, a sign of life, output."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.bench.command import UsageError
from gsparse.files import SUFFIXES, read_file

__all__ = [
    "Command",
    "UsageError",
    "add_device",
    "add_force",
    "add_json",
    "add_matrix",
    "check_free",
    "describe",
    "read_matrix",
    "show",
    "shows_bars",
    "underway",
]

# Seconds after which somebody wants to know that something is happening, and between two looks at the clock.
_PATIENCE, _TICK = 1.0, 0.2


@dataclass(frozen=True)
class Command:
    """A subcommand: what it is for, its arguments, and what it does; `run` gives the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_matrix(parser: argparse.ArgumentParser) -> None:
    """Declare the file that a matrix is read from."""
    parser.add_argument("file", type=Path, metavar="FILE", help=f"the matrix: {', '.join(SUFFIXES[:6])} …")
    parser.add_argument("--name", metavar="NAME", help="the variable, of a .mat file that holds several")


def add_device(parser: argparse._ActionsContainer) -> None:
    """Declare where to compute."""
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N (default: GSPARSE_DEVICE, else auto)")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Declare the output for programs."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_force(parser: argparse._ActionsContainer) -> None:
    """Declare the leave to write over a file."""
    parser.add_argument("--force", action="store_true", help="write over a file that is there")


def check_free(path: Path, options: argparse.Namespace) -> None:
    """Refuse to write over a file without `--force`."""
    if path.exists() and not options.force:
        raise UsageError(f"{path} is there already: give another name, or --force")


def read_matrix(options: argparse.Namespace) -> sp.csr_array:
    """Read the matrix that the command names."""
    with underway(f"reading {options.file.name}"):
        return read_file(options.file, options.name)


def describe(matrix: Any) -> str:
    """Say what a matrix is, in a line."""
    return f"{matrix.shape[0]:,} x {matrix.shape[1]:,}, {matrix.nnz:,} entries of {matrix.dtype}"


def shows_bars() -> bool:
    """Tell whether somebody looks on who can be shown a bar."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


@contextmanager
def underway(text: str) -> Iterator[None]:
    """Show, from the first second on, what is being done within this block and for how long."""
    if not shows_bars():
        yield
        return
    over, began = threading.Event(), time.time()

    def tick() -> None:
        if over.wait(_PATIENCE):
            return
        with import_module("tqdm").tqdm(desc=text, bar_format="{desc}: {elapsed}", leave=False) as bar:
            bar.start_t = began
            while not over.wait(_TICK):
                bar.refresh()

    watcher = threading.Thread(target=tick, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def show(found: dict[str, Any], text: str, options: argparse.Namespace) -> None:
    """Print what was found: for programs, or for people."""
    print(json.dumps(_plain(found), indent=2, allow_nan=False) if options.json else text)


def _plain(value: Any) -> Any:
    """Give what JSON can hold; numbers that are none become null."""
    if isinstance(value, dict):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return str(value) if isinstance(value, Path | complex) else value
