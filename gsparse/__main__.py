"""``python -m gsparse``: see `gsparse.cli`."""

from gsparse.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
