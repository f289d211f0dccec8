"""The line of the user's code that called: the innermost frame outside of gsparse and of installed libraries."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import FrameType

# The file and the line.
Place = tuple[str, int]

# Frames that are searched. A call from deeper inside of libraries is attributed to the first frame outside of gsparse.
_MAX_FRAMES = 100

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_STANDARD_LIBRARY = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
# The folders into which pip and the distributions of Linux install packages, for all users or for one.
_FOLDERS_OF_LIBRARIES = {"site-packages", "dist-packages"}

# Whether a file belongs to gsparse, to another library, or to the user.
_OURS, _OF_LIBRARY, _OF_USER = range(3)
_owners: dict[str, int] = {}


def place_of_caller(frame: FrameType | None) -> Place | None:
    """Return the file and line of the innermost frame of user code, beginning with a frame of gsparse."""
    outside: FrameType | None = None
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        filename = frame.f_code.co_filename
        owner = _owners.get(filename)
        if owner is None:
            owner = _owners[filename] = _owner_of(filename)
        if owner == _OF_USER:
            return filename, frame.f_lineno
        if owner == _OF_LIBRARY and outside is None:
            outside = frame
        frame = frame.f_back
    return None if outside is None else (outside.f_code.co_filename, outside.f_lineno)


def _owner_of(filename: str) -> int:
    if filename.startswith(_PACKAGE):
        return _OURS
    is_standard = filename.startswith((*_STANDARD_LIBRARY, "<frozen"))
    return _OF_LIBRARY if is_standard or _FOLDERS_OF_LIBRARIES & set(Path(filename).parts) else _OF_USER


def text_of_place(place: Place | None) -> str:
    """Return how tables show a place: ``name.py:31``."""
    return "" if place is None else f"{Path(place[0]).name}:{place[1]}"
