"""The commands there are, and what their end means."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence

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
    except BrokenPipeError:  # (`| head` has seen enough; Python would complain once more when it ends)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if options.debug:
            traceback.print_exc()
        elif isinstance(error, _FAILURES + _MISUSES):
            print(f"gsparse {options.command}: {error}", file=sys.stderr)
        else:
            what = f"{type(error).__name__}: {error}"
            print(f"gsparse {options.command}: unexpected {what}; --debug shows where from", file=sys.stderr)
        return MISUSED if isinstance(error, _MISUSES) and not isinstance(error, _FAILURES) else FAILED
