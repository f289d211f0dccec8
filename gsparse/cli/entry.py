"""The commands there are, and what their end means."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from io import TextIOWrapper
from pathlib import Path

import gsparse
from gsparse.cli import bench, convert, demo, doctor, info, solve
from gsparse.errors import CommunicationError, DeviceMemoryError, FactorizationError, GsparseError

__all__ = ["main"]

COMMANDS = {
    "demo": demo.COMMAND,
    "info": info.COMMAND,
    "solve": solve.COMMAND,
    "convert": convert.COMMAND,
    "doctor": doctor.COMMAND,
    "bench": bench.COMMAND,
}

DONE, FAILED, MISUSED, INTERRUPTED = 0, 1, 2, 130

EXIT_CODES = f"""\
exit code: {DONE} if all went well; {FAILED} where it was tried and failed (not converged, no memory, a wrong result);
{MISUSED} where it cannot be carried out as given (arguments, a file that cannot be read, a device that is not there);
{INTERRUPTED} where it was interrupted
"""

# Errors that are nobody's mistake in calling, though gsparse knows them.
_FAILURES = (FactorizationError, DeviceMemoryError, CommunicationError, MemoryError)
# Those that say what to change. (ImportError: of an optional dependency, with what installs it.)
_MISUSES = (GsparseError, OSError, ImportError)


def make_parser() -> argparse.ArgumentParser:
    """Give the parser of every subcommand."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="gsparse", description=gsparse.__doc__, epilog=EXIT_CODES, formatter_class=plain
    )
    parser.add_argument("--version", action="version", version=f"gsparse {gsparse.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = subparsers.add_parser(
            name, help=command.help, description=command.help, epilog=EXIT_CODES, formatter_class=plain
        )
        command.add_arguments(own)
        own.add_argument("--debug", action="store_true", help="show where in the program an error comes from")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and give its exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process where left out.

    Returns
    -------
    int
        0; 1 where what was asked for was tried and failed; 2 where it cannot be carried out as given; 130 where it was
        interrupted.

    Examples
    --------
    >>> from gsparse.cli import main
    >>> main(["info", "/no/such/file.mtx"])
    2
    """
    with _streams():
        return _run(arguments)


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help(sys.stderr)
        return MISUSED
    try:
        code = COMMANDS[options.command].run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # (`| head` has seen enough)
        _drop_output()
        return DONE
    except Exception as error:
        _drop_output()
        if options.debug:
            traceback.print_exc()
        elif isinstance(error, _FAILURES + _MISUSES):
            print(f"gsparse {options.command}: {error}", file=sys.stderr)
        else:
            what = f"{type(error).__name__}: {error}"
            print(f"gsparse {options.command}: unexpected {what}; --debug shows where from", file=sys.stderr)
        return MISUSED if isinstance(error, _MISUSES) and not isinstance(error, _FAILURES) else FAILED


@contextmanager
def _streams() -> Iterator[None]:
    """Let a character be written as ? where the output cannot hold it, and nothing where there is no output (`>&-`)."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None:  # (Python's own mark of a stream that was closed before it began)
                stack.enter_context(redirect(stack.enter_context(Path(os.devnull).open("w"))))
            elif isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        yield


def _drop_output() -> None:
    """Give up what cannot be written any more: Python would complain once more when it ends, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
