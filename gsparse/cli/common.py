"""What the commands share: common arguments, reading the matrix, a progress display, and output."""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from gsparse.bench import problems
from gsparse.bench.command import UsageError, require_folder
from gsparse.files import SUFFIXES

__all__ = [
    "Command",
    "UsageError",
    "add_device",
    "add_force",
    "add_json",
    "add_matrix",
    "can_show_progress",
    "describe",
    "print_result",
    "read_matrix",
    "refuse_overwrite",
    "require_folder",
    "show_elapsed",
]

# Seconds until the elapsed time is displayed, and seconds between two updates of the display.
_DISPLAY_DELAY, _UPDATE_INTERVAL = 1.0, 0.2


@dataclass(frozen=True)
class Command:
    """A subcommand: its help text, a function that declares its arguments, and `run`, which returns the exit code.

    `other_files` says which option takes another file, for the error about a file without one.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    other_files: str = ""


def add_matrix(parser: argparse.ArgumentParser) -> None:
    """Declare the file from which the matrix is read."""
    parser.add_argument("file", type=Path, metavar="FILE", help=f"the matrix: {', '.join(SUFFIXES[:6])} …")
    parser.add_argument("--name", metavar="NAME", help="the variable to read from a .mat file that holds several")


def add_device(parser: argparse._ActionsContainer) -> None:
    """Declare the device on which to compute."""
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N (default: GSPARSE_DEVICE, else auto)")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Declare the option for machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_force(parser: argparse._ActionsContainer) -> None:
    """Declare the option that permits overwriting a file."""
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def refuse_overwrite(path: Path, options: argparse.Namespace) -> None:
    """Raise an error if the file exists and `--force` was not given."""
    if path.exists() and not options.force:
        raise UsageError(f"{path} exists already: give another name, or --force")


def read_matrix(options: argparse.Namespace) -> sp.csr_array:
    """Read the matrix that is named on the command line."""
    with show_elapsed(f"reading {options.file.name}"):
        return problems.read_matrix(options.file, options.name)


def describe(matrix: Any) -> str:
    """Describe a matrix in one line: its shape, its number of entries and its dtype."""
    return f"{matrix.shape[0]:,} x {matrix.shape[1]:,}, {matrix.nnz:,} entries of {matrix.dtype}"


def can_show_progress() -> bool:
    """Return whether stderr is a terminal and tqdm is installed, so that progress can be displayed."""
    return sys.stderr.isatty() and find_spec("tqdm") is not None


@contextmanager
def show_elapsed(text: str) -> Iterator[None]:
    """Display `text` and the elapsed time while the block runs, if it runs for longer than a second.

    This needs a terminal, and tqdm. Without them, nothing is displayed.
    """
    if not can_show_progress():
        yield
        return
    finished, start = threading.Event(), time.time()

    def display() -> None:
        if finished.wait(_DISPLAY_DELAY):
            return
        with import_module("tqdm").tqdm(desc=text, bar_format="{desc}: {elapsed}", leave=False) as bar:
            bar.start_t = start
            while not finished.wait(_UPDATE_INTERVAL):
                bar.refresh()

    display_thread = threading.Thread(target=display, daemon=True)
    display_thread.start()
    try:
        yield
    finally:
        finished.set()
        display_thread.join()


def print_result(result: dict[str, Any], text: str, options: argparse.Namespace) -> None:
    """Print the result as JSON where `--json` asks for it, and as `text` otherwise.

    If the reader, such as ``| head``, has closed the pipe, the command still ends with the exit code of its result.
    """
    with suppress(BrokenPipeError):
        print(json.dumps(_json_value(result), indent=2, allow_nan=False) if options.json else text)


def _json_value(value: Any) -> Any:
    """Convert a value into what JSON can hold: NaN and infinity become null, paths and complex numbers strings."""
    if isinstance(value, dict):
        return {str(name): _json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return _json_value(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return str(value) if isinstance(value, Path | complex) else value
