"""The command line: ``python -m gsparse COMMAND``, or ``gsparse COMMAND`` where it is installed; a file a command."""

from gsparse.cli.entry import main

__all__ = ["main"]
