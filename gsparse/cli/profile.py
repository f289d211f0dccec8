"""``profile``: run a Python program without changing it, and print where its time goes."""

from __future__ import annotations

import argparse
import runpy
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from gsparse._version import install_command
from gsparse.cli.common import Command, UsageError, require_folder
from gsparse.profiling.profile import Profile

__all__ = ["COMMAND"]

# The exit codes of a program that ended with an exception, and of one that was interrupted, as Python's own.
_FAILED, _INTERRUPTED = 1, 130
_PICTURES = (".png", ".pdf", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``profile``."""
    parser.add_argument("--by", choices=("operation", "matrix", "line"), default="line", help="what rows stand for")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all tables as JSON")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="also write a trace for https://ui.perfetto.dev")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the rows by line: .png, .pdf or .svg")
    parser.add_argument("script", type=Path, metavar="SCRIPT", help="the Python program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the arguments of the program")


def run(options: argparse.Namespace) -> int:
    """Run the program, and print the table and the advice to stderr, however the program ends.

    Return the program's exit code.
    """
    if not options.script.is_file():
        raise UsageError(f"{options.script}: there is no such program")
    _check_outputs(options)
    p = Profile()
    try:
        with _as_program(options.script, options.arguments), p:
            code = _run_program(options.script)
    finally:
        _report(p, options)
    return code


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse outputs that could not be written, before the program is run.

    Their paths become absolute, because the program may change the current folder.
    """
    if options.picture and options.picture.suffix.lower() not in _PICTURES:
        raise UsageError(f"--picture {options.picture}: pictures are written as {', '.join(_PICTURES)}")
    if options.picture and not find_spec("matplotlib"):
        raise UsageError(f"--picture needs matplotlib: {install_command('plot')}")
    for option in ("json", "trace", "picture"):
        path = getattr(options, option)
        if path:
            require_folder(f"--{option}", path)
            setattr(options, option, path.absolute())


@contextmanager
def _as_program(script: Path, arguments: list[str]) -> Iterator[None]:
    """Set the arguments and the folder of imports as Python sets them for a program, within the block."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _run_program(script: Path) -> int:
    """Run the program, and return the exit code that Python would have ended with."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        _print_traceback(error)
        return _FAILED
    return 0


def _print_traceback(error: Exception) -> None:
    """Print the traceback as Python does, without the frames of this command and of `runpy`.

    An error in the syntax of the program has no other frames.
    """
    files = {function.__code__.co_filename for function in (_print_traceback, runpy.run_path)}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in files:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)


def _report(p: Profile, options: argparse.Namespace) -> None:
    """Write the files that were asked for, and print the table."""
    if options.json:
        p.to_json(options.json)
    if options.trace:
        p.to_chrome_trace(options.trace)
    if options.picture:
        _draw(p, options.picture)
    with suppress(BrokenPipeError):  # The reader, such as `2>&1 | head`, has closed the pipe.
        print(p.table(options.by), file=sys.stderr)
        for sentence in p.advice:
            print(f"\n- {sentence}", file=sys.stderr)


def _draw(p: Profile, path: Path) -> None:
    from gsparse import plot
    from gsparse.plot.axes import new_figure
    from gsparse.writing import replacing

    figure = new_figure((8.0, 5.0))
    plot.profile(p, figure.subplots(), by="line")
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lower().removeprefix("."))


COMMAND = Command("run a Python program, and print where its time goes", add_arguments, run)
