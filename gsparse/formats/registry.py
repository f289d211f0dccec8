"""The storage formats, by name: each is one object, which registers itself once.

Everything that lists formats, chooses one or finds one by its name looks here: the plan, the preparation of a matrix
for products, the constructor of `gsparse.GpuSparseMatrix`. A format may also be registered from outside the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np

from gsparse.errors import FormatError
from gsparse.formats.costs import KernelModel, num_rounds
from gsparse.formats.entries import Values, dtype_name
from gsparse.formats.launch import Launch
from gsparse.formats.row_stats import RowStats

__all__ = [
    "REGISTRY",
    "Examination",
    "Preparation",
    "Storage",
    "StorageFormat",
    "choices",
    "describe_positions",
    "find_format",
    "name_of",
    "names_of",
    "register",
    "unregister",
]

S_co = TypeVar("S_co", covariant=True)


class Examination(IntEnum):
    """How closely a matrix is looked at when a format is described."""

    NONE = 0  # Describe the format from the row statistics alone.
    SHARED = 1  # Several formats are compared: look at what they have in common.
    FULL = 2  # Only this format is wanted: look at everything that it would store.


@dataclass(frozen=True)
class Storage:
    """How one format would store the entries of a matrix.

    Attributes
    ----------
    columns, values : str
        For the table: "int32", "uint16", "float64", "uint8 of 5", "all equal" …
    num_stored : int
        Positions, padding included.
    nbytes : int
        Bytes of the matrix that one product reads.
    runs : (int, int)
        Of row patterns on a CPU: how many rows have another pattern than the row before, and the entries of these rows.
    """

    columns: str
    values: str
    num_stored: int
    nbytes: int
    runs: tuple[int, int] = (0, 0)


class Preparation(Protocol[S_co]):
    """A matrix that is being prepared for products, as the functions of a format see it.

    Each format's file declares what it asks of `structure` besides. `gsparse.products.storage.Entries` is the
    implementation.
    """

    @property
    def structure(self) -> S_co:
        """The row pointers and columns, and what is derived from them alone."""
        ...

    @property
    def compress(self) -> bool:
        """Whether the matrix may be stored in fewer bytes than CSR takes."""
        ...

    @property
    def values(self) -> Values:
        """The values in CSR's order, compressed where `compress` is true. Synchronizes."""
        ...

    @property
    def plain_values(self) -> Values:
        """The values in CSR's order, as they are."""
        ...


def _always(_: Any) -> bool:
    return True


def _one_thread_per_row(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    return {"step": num_rounds(stats)}


@dataclass(frozen=True)
class StorageFormat:
    """A storage format: what it is called, which matrices it fits, its bytes and predicted cost, and how it is built.

    Attributes
    ----------
    name : str
        The name that `format=` takes, and that a plan shows.
    layout : str
        How the entries are arranged, the name of the storage format in the literature: "csr", "ellpack" …
    fits : callable
        ``fits(row_stats)`` returns whether the format can store rows of these lengths.
    requirement : str
        What a matrix must fulfil, for the message of a refusal: "<name> does not fit this matrix: <requirement>".
    describe : callable
        ``describe(preparation, examination)`` returns the `Storage`, or None where the format is not offered.
    build : callable
        ``build(preparation)`` returns the frozen arrays. Synchronizes.
    costs : mapping of str to KernelModel
        The constants of a product, by the kind of device ("cpu", "gpu"). The format is offered on these kinds.
    schedule : str, optional
        How threads share the work, for a layout that has several ways: "scalar", "vector", "adaptive", "split".
    terms : callable, optional
        ``terms(row_stats, storage, launch, long_length)`` returns the counts of the terms `step`, `chunk` and `sorted`
        of `KernelModel`. `long_length` is that of the `MachineModel`. By default, one thread multiplies one row.
    accepts : callable, optional
        ``accepts(structure)`` returns whether the columns allow the format too. By default they do. May synchronize.
    pieces : tuple of str, optional
        Names of the attributes of the structure that hold its arrays. Other formats' pieces are dropped when a matrix
        has been built.
    reads_csr : bool, optional
        Whether products read CSR's own arrays, so that nothing is converted and little memory is needed.
    only_compressed : bool, optional
        Whether `compress=False` keeps "auto" from choosing the format, because sharing is all that the layout is for.
    kernels : mapping of str to callable, optional
        Kernels by the kind of device, for a format whose kernels are not those of `gsparse.kernels` with its name.
        ``kernels[kind](device, stored, dtype, launch)`` returns ``multiply(x, y, alpha, beta, conjugate)``, which
        `gsparse.kernels.contract` describes.
    """

    name: str
    layout: str
    fits: Callable[[RowStats], bool]
    requirement: str
    describe: Callable[[Any, Examination], Storage | None]
    build: Callable[[Any], Any]
    costs: Mapping[str, KernelModel]
    schedule: str | None = None
    terms: Callable[[RowStats, Storage, Launch, int], dict[str, float]] = _one_thread_per_row
    accepts: Callable[[Any], bool] = _always
    pieces: tuple[str, ...] = ()
    reads_csr: bool = False
    only_compressed: bool = False
    kernels: Mapping[str, Callable[..., Callable[..., None]]] = field(default_factory=lambda: MappingProxyType({}))

    def refusal(self) -> FormatError:
        """Return the error for a matrix that the format does not fit."""
        return FormatError(f"{self.name} does not fit this matrix: {self.requirement}")


# Every format by its name, in the order of registration: plans list candidates in this order, and the earlier of two
# equally good ones is chosen.
REGISTRY: dict[str, StorageFormat] = {}


def register(format: StorageFormat) -> StorageFormat:
    """Add a format, so that it can be asked for by its name and "auto" considers it.

    Matrices that were planned before keep their plans.

    Raises
    ------
    ValueError
        Where there is a format of this name already, or the name means a choice of formats.
    """
    if format.name == "auto" or format.name in REGISTRY or names_of(layout=format.name):
        raise ValueError(f"there is a format or a layout {format.name!r} already: give this format another name")
    REGISTRY[format.name] = format
    return format


def unregister(name: str) -> None:
    """Remove a format. Matrices that are built in it keep multiplying."""
    del REGISTRY[name]


def find_format(name: str) -> StorageFormat:
    """Return a registered format by its name."""
    return REGISTRY[name]


def names_of(**facts: Any) -> tuple[str, ...]:
    """Return the names of all formats, in order, or of those with the given attributes alone.

    Examples
    --------
    >>> import gsparse
    >>> names_of(layout="csr")
    ('csr_scalar', 'csr_vector', 'csr_adaptive', 'csr_split')
    """
    return tuple(
        name for name, format in REGISTRY.items() if all(getattr(format, fact) == facts[fact] for fact in facts)
    )


def choices(request: str) -> tuple[StorageFormat, ...]:
    """Return the formats among which a request leaves the choice.

    Parameters
    ----------
    request : str
        The name of a format, which leaves this one; that of a layout, which leaves its schedules; or "auto".

    Raises
    ------
    FormatError
        Where there is no such format; the message lists those that there are.
    """
    if isinstance(request, str):
        if request in REGISTRY:
            return (REGISTRY[request],)
        found = tuple(format for format in REGISTRY.values() if request in ("auto", format.layout))
        if found:
            return found
    raise FormatError(
        f"unknown format {request!r}: use one of auto, {', '.join(REGISTRY)}, or with schedule= {_scheduled_layouts()}"
    )


def name_of(format: str, schedule: str | None) -> str:
    """Return the name of a format from its layout and schedule: "csr" and "vector" are "csr_vector".

    Raises
    ------
    FormatError
        Where the layout has no such schedule; the message lists those that there are.

    Examples
    --------
    >>> import gsparse
    >>> name_of("csr", "vector"), name_of("csr", None), name_of("csr_vector", "vector")
    ('csr_vector', 'csr', 'csr_vector')
    """
    named = choices(format)
    if schedule is None:
        return format
    names = {each.schedule: each.name for each in named if each.schedule is not None and format != "auto"}
    if schedule in names:
        return names[schedule]
    remedy = f"use {' or '.join(map(repr, names))}" if names else f"leave it out, or use format={_scheduled_layouts()}"
    raise FormatError(f"format={format!r} has no schedule {schedule!r}: {remedy}")


def _scheduled_layouts() -> str:
    """Return the names of the layouts that have schedules, for a message."""
    return " or ".join(dict.fromkeys(repr(each.layout) for each in REGISTRY.values() if each.schedule is not None))


def describe_positions(columns: np.dtype[Any], values: Values, positions: int, other_bytes: int, run: int) -> Storage:
    """Describe entries that are stored as a column and a value at each position.

    Parameters
    ----------
    columns : dtype
        An unsigned dtype means that columns are stored relative to a base of each run.
    values : Values
        In any order: their number of bytes for each position counts.
    positions : int
        Padding included.
    other_bytes : int
        Bytes that say where rows are.
    run : int
        Positions that share a base.
    """
    bases = 4 * -(-positions // run) if columns.kind == "u" else 0
    nbytes = other_bytes + positions * columns.itemsize + bases + values.nbytes_at(positions)
    return Storage(dtype_name(columns), values.describe(), positions, nbytes)
