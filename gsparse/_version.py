"""The version, for the package's metadata and for what is cached on disk."""

__version__ = "0.1.0.dev0"
