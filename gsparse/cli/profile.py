"""``profile``: run a Python program without changing it, and print where its time goes."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from gsparse.bench.command import UsageError, require_folder
from gsparse.cli.common import Command
from gsparse.profiling.profile import Profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``profile``."""
    parser.add_argument("--by", choices=("operation", "matrix", "line"), default="line", help="what rows stand for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all tables as JSON")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="the Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the program")


def run(options: argparse.Namespace) -> int:
    """Run the program, and print the table to stderr even if the program fails. Return the program's exit code."""
    if not options.script.is_file():
        raise UsageError(f"{options.script}: there is no such program")
    if options.json:
        require_folder("--json", options.json)
        options.json = options.json.absolute()  # the program may change the current folder
    argv, path = sys.argv, list(sys.path)
    # Python does the same when it runs a program, so that modules in the program's folder are found.
    sys.argv, sys.path[:0] = [str(options.script), *options.arguments], [str(options.script.resolve().parent)]
    try:
        with Profile() as p:
            code = _run_program(options.script)
    finally:
        sys.argv, sys.path[:] = argv, path
    if options.json:
        p.to_json(options.json)
    with suppress(BrokenPipeError):  # the reader, such as `2>&1 | head`, has closed the pipe
        print(p.table(options.by), file=sys.stderr)
    return code


def _run_program(script: Path) -> int:
    """Run the program, and return the exit code that it would have had in its own process."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 1
    return 0


COMMAND = Command("run a Python program, and print where its time goes", add_arguments, run)
