"""What a run gives: a frozen record a row, and how it is written to JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gsparse.writing import replacing

__all__ = ["Record", "Run", "by_matrix", "geometric_mean", "with_reference"]


@dataclass(frozen=True)
class Record:
    """One way of multiplying one matrix, and what it took.

    Attributes
    ----------
    matrix, dtype, device : str
    rows, cols, nnz, longest : int
        The matrix's shape, entries, and entries of its longest row.
    what : str
        As the table names it.
    kind : {"format", "plan", "layout", "vendor", "library"}
        A format (for several columns a launch) asked for by name, the plan's own choice, the same for a column-major
        X, the vendor's library, or another library.
    format : str
        gsparse's format or launch; empty for others.
    columns : int or None
        Of X, where it is no vector.
    threads : int or None
        CPU threads.
    threads_per_block : int or None
    compressed : bool or None
    kernel_us : float or None
        µs of a product on the device alone, without the call.
    call_us : float or None
        µs of an eager call among others, until the last is done.
    nbytes : int
        Bytes of the matrix as stored, and of x and y once.
    padding : float or None
        Stored over true entries.
    predicted_us : float or None
        What the plan expected.
    setup_us : float or None
        µs of the conversion or analysis.
    peak : float or None
        Device memory in use at the peak of it, the CSR arrays it came from included, over theirs.
    error_eps : float or None
        Largest |computed - exact| over eps·(|A|·|x|), if checked.
    correct : bool or None
        Whether each row is within its bound, if checked.
    reference : str
        What `reference_us` is the best time of.
    reference_us : float or None
    note : str
        How it was timed if not as the others, why it was left out, or the error.
    status : {"measured", "skipped", "failed"}
    """

    matrix: str
    rows: int
    cols: int
    nnz: int
    longest: int
    dtype: str
    device: str
    what: str
    kind: str
    format: str = ""
    columns: int | None = None
    threads: int | None = None
    threads_per_block: int | None = None
    compressed: bool | None = None
    kernel_us: float | None = None
    call_us: float | None = None
    nbytes: int = 0
    padding: float | None = None
    predicted_us: float | None = None
    setup_us: float | None = None
    peak: float | None = None
    error_eps: float | None = None
    correct: bool | None = None
    reference: str = ""
    reference_us: float | None = None
    note: str = ""
    status: str = "measured"

    @property
    def us(self) -> float | None:
        """The time compared: on the device alone where there is one, else the call's."""
        return self.kernel_us if self.kernel_us is not None else self.call_us

    @property
    def gbytes_per_second(self) -> float | None:
        return None if not self.us else self.nbytes / self.us / 1e3

    @property
    def setup_products(self) -> float | None:
        """The set-up in products of its own."""
        return None if self.setup_us is None or not self.us else self.setup_us / self.us

    @property
    def speedup(self) -> float | None:
        """The reference's time over this; above 1 is faster."""
        return None if self.reference_us is None or not self.us else self.reference_us / self.us


@dataclass(frozen=True)
class Run:
    """All records of one run, and what they depend on.

    Attributes
    ----------
    environment : dict of str
    copy_gbytes_per_second : dict of float
        Bandwidth of a large copy, bytes read and written; by threads ("1", "2") on a CPU, under "gpu" on a GPU.
    records : tuple of Record
    errors : dict of str
        Why a matrix could not be measured at all.
    """

    environment: dict[str, str]
    copy_gbytes_per_second: dict[str, float]
    records: tuple[Record, ...]
    errors: dict[str, str] = field(default_factory=dict)

    def copy_share(self, record: Record) -> float | None:
        """Give a record's bandwidth over the copy's."""
        key = "gpu" if record.threads is None else str(record.threads)
        copy, reached = self.copy_gbytes_per_second.get(key), record.gbytes_per_second
        return reached / copy if copy and reached else None

    def write(self, path: Path) -> None:
        """Write JSON, with what follows from the figures beside them."""
        rows = [asdict(r) | {k: getattr(r, k) for k in ("setup_products", "speedup")} for r in self.records]
        rest = {k: v for k, v in vars(self).items() if k != "records"}
        with replacing(path) as file:
            file.write(json.dumps(rest | {"records": rows}, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read what `write` wrote."""
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = set(Record.__dataclass_fields__)
        records = tuple(Record(**{k: v for k, v in row.items() if k in names}) for row in found.pop("records"))
        return cls(**found, records=records)


def by_matrix(records: Iterable[Record]) -> dict[tuple[str, str, int | None], list[Record]]:
    """Gather the records of the same matrix, type and threads: those that may be compared."""
    found: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in records:
        found.setdefault((record.matrix, record.dtype, record.threads), []).append(record)
    return found


def with_reference(records: Sequence[Record]) -> list[Record]:
    """Give the records of one matrix with the time to beat filled in.

    On a GPU that is the vendor's best; on the CPU the best of every library with at most as many threads.
    """
    filled = []
    for record in records:
        rivals = [r for r in records if r.kind in ("vendor", "library") and r.us and r.status == "measured"]
        if record.threads is None:
            rivals = [r for r in rivals if r.kind == "vendor"] or rivals
        else:
            rivals = [r for r in rivals if (r.threads or 1) <= record.threads]
        names = "/".join(sorted({r.what.split()[0] for r in rivals}))
        best = min((r.us or math.inf for r in rivals), default=None)
        filled.append(replace(record, reference=f"{names} best-of" if rivals else "", reference_us=best))
    return filled


def geometric_mean(values: Iterable[float]) -> float | None:
    """Give the geometric mean; None of nothing.

    Examples
    --------
    >>> geometric_mean([1.0, 4.0]), geometric_mean([])
    (2.0, None)
    """
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
