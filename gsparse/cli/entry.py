"""The table of commands, the parser of their arguments, and the exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import gsparse
from gsparse._interrupt import restore
from gsparse.cli import bench, doctor, info, profile, solve, warmup
from gsparse.errors import CommunicationError, DeviceMemoryError, FactorizationError, GsparseError

COMMANDS = {
    module.__name__.rpartition(".")[2]: module.COMMAND for module in (doctor, info, solve, bench, profile, warmup)
}

SUCCESS, FAILURE, MISUSE, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = f"""\
exit code: {SUCCESS} for success; {FAILURE} if the command failed (not converged, out of memory, a wrong result);
{MISUSE} if the command cannot run as given (arguments, a file that cannot be read, a device that does not exist);
{INTERRUPTED} if the command was interrupted. `profile` returns the exit code of the program that it runs
"""

# Errors that occur although the arguments are valid.
_FAILURES = (FactorizationError, DeviceMemoryError, CommunicationError, MemoryError, TimeoutError)
# Errors whose messages say what to change. An ImportError is due to an optional dependency, and names the command that
# installs it.
_MISUSES = (GsparseError, OSError, ImportError)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    shared: Any = {"epilog": EXIT_CODES, "formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
    parser = argparse.ArgumentParser(prog="gsparse", description=gsparse.__doc__, **shared)
    parser.add_argument("--version", action="version", version=f"gsparse {gsparse.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=command.help, description=command.help, **shared)
        command.add_arguments(subparser)
        subparser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command's name and its arguments. By default, the arguments of the process.

    Returns
    -------
    int
        0 for success, 1 if the command failed, 2 if it cannot run with these arguments, 130 if it was interrupted. For
        ``profile``, the exit code of the program that it runs.

    Raises
    ------
    SystemExit
        If the arguments are wrong (code 2), and after ``--help`` and ``--version`` (code 0), as argparse does.

    Examples
    --------
    >>> from gsparse.cli import main
    >>> main(["info", "/no/such/file.mtx"])
    2
    """
    restore()
    with _robust_streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSE
    code = SUCCESS
    try:
        code = int(COMMANDS[options.command].run(options))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `| head`, has closed the pipe
        return code
    except Exception as error:
        _discard_output()
        with suppress(BrokenPipeError):
            _print_error(error, options)
        return MISUSE if isinstance(error, _MISUSES) and not isinstance(error, _FAILURES) else FAILURE
    finally:
        _discard_output()


def _print_error(error: Exception, options: argparse.Namespace) -> None:
    if options.debug:
        traceback.print_exc()
        return
    is_expected = isinstance(error, _FAILURES + _MISUSES)
    text = error if is_expected else f"unexpected {type(error).__name__}: {error}; --debug prints the traceback"
    print(f"gsparse {options.command}: {text}", file=sys.stderr)


@contextmanager
def _robust_streams() -> Iterator[None]:
    """Write `?` for characters that the output's encoding lacks. Discard output to a stream closed with `>&-`."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None:  # Python sets a stream to None if it was closed before the process began.
                stack.enter_context(redirect(stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))))
            elif isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        yield


def _discard_output() -> None:
    """Discard output that cannot be written. Otherwise, Python would fail again at exit, with exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
