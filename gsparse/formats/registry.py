"""The registry of storage formats: each format is one object, and is registered once under its name.

All code that lists formats, chooses one or finds one by its name uses this registry: the plan, the preparation of a
matrix for products, and the constructor of `gsparse.GpuSparseMatrix`. Code outside the package can also register a
format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np

from gsparse.errors import FormatError
from gsparse.formats.costs import KernelModel, num_rounds
from gsparse.formats.entries import Values, dtype_name
from gsparse.formats.launch import Launch
from gsparse.formats.row_stats import RowStats


class AnalysisLevel(IntEnum):
    """How much of a matrix is analyzed in order to describe how a format would store it."""

    NONE = 0  # Describe the format from the row statistics, and from blocks that are known already.
    SHARED = 1  # Several formats are compared: analyze only what they share, such as the values.
    FULL = 2  # Only this format is wanted: analyze everything that it would store.


@dataclass(frozen=True)
class Encoding:
    """Which parts of a matrix may be stored in fewer bytes than CSR takes.

    Fewer bytes take less time to read, but decoding them takes instructions. What is faster depends on the device, and
    on whether the matrix stays in a cache.

    Attributes
    ----------
    columns : bool
        Whether columns are stored relative to a base, in one or two bytes, if they are close enough to each other.
    values : bool
        Whether values are stored as indices into a table of the distinct ones, once if all are equal, or in half the
        precision if that represents each of them exactly.
    """

    columns: bool
    values: bool

    def within(self) -> tuple[Encoding, ...]:
        """Return the encodings that compress all or some of the parts that this encoding compresses; this one first.

        Examples
        --------
        >>> [(e.columns, e.values) for e in Encoding(columns=True, values=True).within()]
        [(True, True), (True, False), (False, True), (False, False)]
        """
        options = [(True, False) if allowed else (False,) for allowed in (self.columns, self.values)]
        return tuple(Encoding(*choice) for choice in product(*options))


COMPRESSED, PLAIN = Encoding(True, True), Encoding(False, False)


@dataclass(frozen=True)
class Storage:
    """How one format would store the entries of a matrix.

    Attributes
    ----------
    columns, values : str
        The encodings, for the table of a plan: "int32", "uint16", "float64", "uint8 of 5", "all equal" …
    num_stored : int
        Number of positions, padding included.
    nbytes : int
        Bytes of the matrix that one product reads.
    runs : (int, int)
        Only for row patterns on a CPU: the number of runs, which are groups of consecutive rows with the same pattern,
        and the number of entries of one row of each run.
    has_bases : bool
        Whether columns are stored relative to a base, which a product adds.
    has_codes : bool
        Whether values are stored as indices into a table, in which a product looks them up.
    table_bytes : int
        Bytes of the table of values, or of the rows that row patterns share. All positions read the same table.
    encoding : Encoding
        Which parts may be compressed. Storages of one format with different encodings are different candidates.
    values_per_column : int
        Number of positions that share a column: more than one in dense blocks.
    """

    columns: str
    values: str
    num_stored: int
    nbytes: int
    runs: tuple[int, int] = (0, 0)
    has_bases: bool = False
    has_codes: bool = False
    table_bytes: int = 0
    encoding: Encoding = COMPRESSED
    values_per_column: int = 1


def _always(_: Any) -> bool:
    return True


def _one_thread_per_row(stats: RowStats, storage: Storage, launch: Launch, long_length: int) -> dict[str, float]:
    return {"step": num_rounds(stats)}


@dataclass(frozen=True)
class StorageFormat:
    """A storage format: its name, the matrices that fit, its bytes and predicted time, and how it is built.

    Attributes
    ----------
    name : str
        The name that `format=` takes, and that a plan shows.
    layout : str
        How the entries are arranged, the name of the storage format in the literature: "csr", "ellpack" …
    fits : callable
        ``fits(row_stats)`` returns whether the format can store rows of these lengths.
    requirement : str
        What the format requires of a matrix, for the error message "<name> does not fit this matrix: <requirement>".
    describe : callable
        ``describe(preparation, level)`` returns the `Storage`, or None if the format is not a candidate for this
        matrix. `preparation` is a `gsparse.products.storage.MatrixPreparation`, and `level` an `AnalysisLevel`.
    build : callable
        ``build(preparation)`` returns the frozen arrays. Synchronizes.
    costs : mapping of str to KernelModel
        The constants of a product, by the kind of device ("cpu", "gpu"). The format is a candidate on these kinds only.
    schedule : str, optional
        How threads share the work, for a layout with several schedules: "scalar" or "vector".
    terms : callable, optional
        ``terms(row_stats, storage, launch, long_length)`` returns the counts of the terms `step`, `chunk` and `sorted`
        of `KernelModel`. `long_length` is `MachineModel.long_length`. By default, one thread multiplies one row.
    accepts : callable, optional
        ``accepts(structure)`` returns whether the columns allow the format too. By default True. It may synchronize.
    parts : tuple of classes, optional
        The parts of a structure (`gsparse.products.structure.Part`) whose arrays this format uses. They depend on row
        pointers and columns alone, so matrices with other values share them. When a matrix has been built, the arrays
        of all other parts are freed.
    reads_csr : bool, optional
        Whether products read CSR's own arrays, so that nothing is converted and little memory is needed.
    only_compressed : bool, optional
        Whether "auto" never chooses the format with `compress=False`, because the layout has no other purpose than
        compression.
    kernels : mapping of str to callable, optional
        Kernels by the kind of device, for a format whose kernels are not part of `gsparse.kernels`.
        ``kernels[kind](device, stored, dtype, launch)`` returns ``multiply(x, y, alpha, beta, conjugate)``, as
        `gsparse.kernels.contract.BindProduct` and `Multiply` describe it.
    """

    name: str
    layout: str
    fits: Callable[[RowStats], bool]
    requirement: str
    describe: Callable[[Any, AnalysisLevel], Storage | None]
    build: Callable[[Any], Any]
    costs: Mapping[str, KernelModel]
    schedule: str | None = None
    terms: Callable[[RowStats, Storage, Launch, int], dict[str, float]] = _one_thread_per_row
    accepts: Callable[[Any], bool] = _always
    parts: tuple[type[Any], ...] = ()
    reads_csr: bool = False
    only_compressed: bool = False
    kernels: Mapping[str, Callable[..., Callable[..., None]]] = field(default_factory=lambda: MappingProxyType({}))

    def refusal(self) -> FormatError:
        """Return the error for a matrix that the format cannot store."""
        return FormatError(f"{self.name} does not fit this matrix: {self.requirement}")


# Every format by its name, in the order of registration. Plans list candidates in this order. If two are predicted to
# be equally fast, the earlier one is chosen.
REGISTRY: dict[str, StorageFormat] = {}


def register(format: StorageFormat) -> StorageFormat:
    """Add a format, so that users can choose it by its name and "auto" considers it.

    Matrices that were planned before keep their plans.

    Raises
    ------
    ValueError
        If a format or a layout has this name already, or the name is "auto".
    """
    if format.name == "auto" or format.name in REGISTRY or names_of(layout=format.name):
        raise ValueError(f"there is a format or a layout {format.name!r} already: give this format another name")
    REGISTRY[format.name] = format
    return format


def unregister(name: str) -> None:
    """Remove a format. Raises KeyError if there is none of this name. Matrices that were built in it still multiply."""
    del REGISTRY[name]


def find_format(name: str) -> StorageFormat:
    """Return the registered format of this name. Raises KeyError if there is none (users' input: `choices`)."""
    return REGISTRY[name]


def names_of(**attributes: Any) -> tuple[str, ...]:
    """Return the names of the formats whose attributes have these values, in the order of registration.

    Examples
    --------
    >>> import gsparse
    >>> names_of(layout="csr")
    ('csr_scalar', 'csr_vector')
    """
    return tuple(
        name
        for name, format in REGISTRY.items()
        if all(getattr(format, attribute) == value for attribute, value in attributes.items())
    )


def choices(request: str) -> tuple[StorageFormat, ...]:
    """Return the formats that a request allows.

    Parameters
    ----------
    request : str
        The name of a format, which allows this one only; the name of a layout, which allows all of its schedules; or
        "auto", which allows every format.

    Raises
    ------
    FormatError
        If there is no format or layout of this name. The message lists the valid names.
    """
    if isinstance(request, str):
        if request in REGISTRY:
            return (REGISTRY[request],)
        formats = tuple(format for format in REGISTRY.values() if request in ("auto", format.layout))
        if formats:
            return formats
    raise FormatError(
        f"unknown format {request!r}: use one of auto, {', '.join(REGISTRY)}, or {_scheduled_layouts()} with schedule="
    )


def name_of(format: str, schedule: str | None) -> str:
    """Return the name of the format with this layout and schedule, such as "csr_vector" for "csr" and "vector".

    Raises
    ------
    FormatError
        If the layout has no such schedule. The message lists its schedules.

    Examples
    --------
    >>> import gsparse
    >>> name_of("csr", "vector"), name_of("csr", None), name_of("csr_vector", "vector")
    ('csr_vector', 'csr', 'csr_vector')
    """
    allowed = choices(format)
    if schedule is None:
        return format
    names = {each.schedule: each.name for each in allowed if each.schedule is not None and format != "auto"}
    if isinstance(schedule, str) and schedule in names:
        return names[schedule]
    remedy = f"use {' or '.join(map(repr, names))}" if names else f"leave it out, or use format={_scheduled_layouts()}"
    raise FormatError(f"format={format!r} has no schedule {schedule!r}: {remedy}")


def _scheduled_layouts() -> str:
    """Return the names of the layouts that have several schedules, for a message."""
    return " or ".join(dict.fromkeys(repr(each.layout) for each in REGISTRY.values() if each.schedule is not None))


def describe_positions(
    columns: np.dtype[Any], values: Values, positions: int, other_bytes: int, run: int, values_per_column: int = 1
) -> Storage:
    """Return the `Storage` of a format with a value at each position, and a column for each position or for several.

    Parameters
    ----------
    columns : dtype
        An unsigned dtype means that columns are stored relative to a base of each run.
    values : Values
        The values in any order. Only their number of bytes per position is used.
    positions : int
        Number of positions, padding included.
    other_bytes : int
        Bytes of the arrays that say where rows are stored.
    run : int
        Number of columns that share a base.
    values_per_column : int, optional
        Number of positions that share a column.
    """
    has_bases = columns.kind == "u"
    num_columns = positions // values_per_column
    bases = 4 * -(-num_columns // run) if has_bases else 0
    nbytes = other_bytes + num_columns * columns.itemsize + bases + values.nbytes_at(positions)
    return Storage(
        dtype_name(columns),
        values.describe(),
        positions,
        nbytes,
        has_bases=has_bases,
        has_codes=values.has_codes,
        table_bytes=values.table_bytes,
        values_per_column=values_per_column,
    )
