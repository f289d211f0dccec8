"""Functions that the commands share: common arguments, descriptions and output."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gsparse.files import SUFFIXES


@dataclass(frozen=True)
class Command:
    """A subcommand: its help text, the function that declares its arguments, and `run`, which returns the exit code."""

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def add_matrix(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for the file from which the matrix is read."""
    parser.add_argument("file", type=Path, metavar="FILE", help=f"the matrix: {', '.join(SUFFIXES[:6])} …")
    parser.add_argument("--name", metavar="NAME", help="the variable to read from a .mat file that holds several")


def add_device(parser: argparse._ActionsContainer) -> None:
    """Declare the argument for the device that computes."""
    parser.add_argument("--device", help="auto, cpu, gpu or gpu:N (default: GSPARSE_DEVICE, else auto)")


def add_json(parser: argparse._ActionsContainer) -> None:
    """Declare the option for machine-readable output."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def describe(matrix: Any) -> str:
    """Describe a matrix in one line: its shape, its number of entries and its dtype."""
    return f"{matrix.shape[0]:,} x {matrix.shape[1]:,}, {matrix.nnz:,} entries of {matrix.dtype}"


def print_result(result: dict[str, Any], text: str, options: argparse.Namespace) -> None:
    """Print the result as JSON if ``--json`` asks for it, otherwise print `text`.

    If the reader of a pipe, such as ``| head``, has closed it, the command still ends with the exit code of its result.
    """
    with suppress(BrokenPipeError):
        print(json.dumps(_json_value(result), indent=2, allow_nan=False) if options.json else text)


def _json_value(value: Any) -> Any:
    """Convert a value for JSON: NaN and infinity become null; paths and complex numbers become strings."""
    if isinstance(value, dict):
        return {str(name): _json_value(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return _json_value(value.tolist())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return str(value) if isinstance(value, Path | complex) else value
