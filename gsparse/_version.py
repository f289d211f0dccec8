"""The version, for the package's metadata and the keys of the caches on disk, and the package's name on the index."""

__version__ = "0.1.0"

# What `pip install` calls this package. On the index, "gsparse" is another project: a parser of spreadsheets.
DISTRIBUTION = "gsparse-gpu"


def install_command(extra: str) -> str:
    """Return the command that installs an optional dependency of gsparse, for error messages."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"
