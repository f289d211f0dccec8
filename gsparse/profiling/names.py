"""The names of operations in a profile, and the line of the user's code that called an operation."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from types import FrameType

# A file and a line number.
Place = tuple[str, int]

# Largest number of stack frames that are searched for user code. If none of these is user code, the first frame outside
# gsparse counts as the caller.
_MAX_FRAMES = 100

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_STANDARD_LIBRARY = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})
# The folders into which pip and Linux distributions install packages, for all users or for one user.
_FOLDERS_OF_LIBRARIES = {"site-packages", "dist-packages"}

# The owner of a file: gsparse, another library, or the user.
_OURS, _OF_LIBRARY, _OF_USER = range(3)
_owners: dict[str, int] = {}


def place_of_caller(frame: FrameType | None) -> Place | None:
    """Return the file and line of the innermost frame of user code around `frame`, which is a frame of gsparse."""
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
    """Return a place as tables show it: ``name.py:31``."""
    return "" if place is None else f"{Path(place[0]).name}:{place[1]}"


# The name of the operation that prepares a matrix for a product again because the program holds one of its host arrays.
ON_LOAN = "prepare again, because a host array is held"

# The kinds of operations, by the module of gsparse that contains the operation. The longest matching name counts.
_KINDS = {
    "gsparse.products": "set-up",
    "gsparse.products.multiply": "product",
    "gsparse.matrix": "sparse algebra",
    "gsparse.sparse": "sparse algebra",
    "gsparse.matrix.arrays": "set-up",
    "gsparse.matrix.assembly": "conversion",
    "gsparse.matrix.constructor": "set-up",
    "gsparse.matrix.conversions": "conversion",
    "gsparse.matrix.product_methods": "set-up",
    "gsparse.matrix.simple_matrices": "conversion",
    "gsparse.linalg": "linear algebra",
    "gsparse.linalg.operators": "product",
}

# The names of operations, by the last part of the module's name and the function's name. An operation without an entry
# here is named by these two names.
_NAMES = {
    "multiply.multiply": "arguments and results of products",
    "operators._product": "product of an operator",
    "arrays.prepare_matrix": "check a matrix and count its rows",
    "prepared._retry_with_csr": "",  # Not recorded, because the cache of formats records its parts separately.
    "prepared.transposed": "transposed copy for products",
    "prepared.transposed_csr": "transpose",
    "prepared.refusal": "check a requested format",
    "prepared.is_canonical": "look for unsorted rows",
    "constructor._of_device_source": "take arrays of the device",
    "linear_system.solving": "host work of a solve",
    "linear_system.make_linear_system": "arguments of a solve",
    "linear_system.nonfinite_inputs": "look for NaN",
    "square_matrix.of": "parts of a matrix for a preconditioner",
    "sparse_operations.multiply_sparse": "A @ B",
    "sparse_operations.multiply_entries": "A.multiply(B)",
    "sparse_operations.combine_sparse": "A + B, A - B and comparisons",
    "sparse_operations.operand_of": "bring a second matrix to the device",
    "elementwise._map_values": "function of each entry",
    "reductions.sums_along": "sums of rows or columns",
    "reductions.sums_of_all": "sum of all entries",
    "conversions._to_format": "other format",
    "conversions._dense_on_device": "dense array",
}

# The kinds and names that `name_of_block` has already found, by file and function.
_known: dict[tuple[str, str], tuple[str, str]] = {}


def name_of_block(frame: FrameType) -> tuple[str, str]:
    """Return the kind and the name of the operation whose function has this frame.

    If the name is "", the operation is not recorded.
    """
    code = frame.f_code
    key = code.co_filename, code.co_name
    names = _known.get(key)
    if names is None:
        names = _known[key] = _names_of(str(frame.f_globals.get("__name__", "")), code.co_name)
    return names


def _names_of(module: str, function: str) -> tuple[str, str]:
    matching = [prefix for prefix in _KINDS if module == prefix or module.startswith(f"{prefix}.")]
    kind = _KINDS[max(matching, key=len)] if matching else "other"
    stem = module.rpartition(".")[2]
    plain_name = f"{stem}: {function}".replace("_", " ").replace(":  ", ": ")
    return kind, _NAMES.get(f"{stem}.{function}", plain_name)
