"""Run the command line, as ``python -m gsparse`` (`gsparse.cli`)."""

from gsparse.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
