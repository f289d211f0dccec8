"""The results of a run: a frozen record for each row of the tables, which is written to and read from JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from gsparse.writing import replacing


@dataclass(frozen=True)
class Record:
    """The measurements of one product (a peer) of one matrix.

    Attributes
    ----------
    matrix, dtype, device : str
    rows, cols, nnz, longest : int
        The shape of the matrix, its number of entries, and the number of entries of its longest row.
    what : str
        The name of the peer in the table.
    kind : {"format", "plan", "layout", "vendor", "library"}
        "format": a format that was requested by name. "plan": the format that the plan chose. "layout": the same for a
        column-major X. "vendor": the vendor's library. "library": another library.
    format : str
        The format of gsparse. Empty for other libraries.
    columns : int or None
        The number of columns of X, or None if x is a vector.
    threads : int or None
        The number of CPU threads, or None on a GPU.
    compressed : bool or None
    kernel_us : float or None
        Microseconds of a product on the device, without the overhead of the call.
    call_us : float or None
        Microseconds per product in a batch of eager calls, until the device has finished the last product.
    nbytes : int
        Bytes of the stored matrix, x and y, each counted once.
    padding : float or None
        Number of stored positions divided by number of entries.
    predicted_us : float or None
        The plan's predicted time in microseconds.
    setup_us : float or None
        Microseconds of the conversion or analysis.
    peak : float or None
        Peak device memory during the conversion, CSR arrays included, divided by the bytes of the CSR arrays.
    error_eps : float or None
        Largest |computed - exact| divided by eps·(|A|·|x|), if checked. None also if only one of the two is finite in a
        row.
    correct : bool or None
        Whether the error of each row is within its bound, if checked.
    reference : str
        The libraries whose best time is `reference_us`.
    reference_us : float or None
    note : str
        How the product was timed, if not like the other products; why it was skipped; or the error.
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
        """The time for comparisons: `kernel_us` if it was measured, else `call_us`."""
        return self.kernel_us if self.kernel_us is not None else self.call_us

    @property
    def gbytes_per_second(self) -> float | None:
        return None if not self.us else self.nbytes / self.us / 1e3

    @property
    def setup_products(self) -> float | None:
        """The set-up time divided by the time of one product."""
        return None if self.setup_us is None or not self.us else self.setup_us / self.us

    @property
    def speedup(self) -> float | None:
        """The time of the reference divided by the time of this record: above 1, this record is faster."""
        return None if self.reference_us is None or not self.us else self.reference_us / self.us


@dataclass(frozen=True)
class Run:
    """All records of one run, and the environment in which they were measured.

    Attributes
    ----------
    environment : dict of str
    copy_gbytes_per_second : dict of float
        Bandwidth of a large copy, counting bytes read and bytes written. On a CPU, the keys are numbers of threads
        ("1", "2"); on a GPU, "gpu".
    records : tuple of Record
    errors : dict of str
        The reasons for which matrices could not be measured, by matrix and dtype, such as "R-MAT 15, float64".
    """

    environment: dict[str, str]
    copy_gbytes_per_second: dict[str, float]
    records: tuple[Record, ...]
    errors: dict[str, str] = field(default_factory=dict)

    def copy_share(self, record: Record) -> float | None:
        """Return a record's bandwidth divided by that of a large copy with as many threads.

        Return None if either bandwidth is unknown.
        """
        key = "gpu" if record.threads is None else str(record.threads)
        copy_bandwidth, bandwidth = self.copy_gbytes_per_second.get(key), record.gbytes_per_second
        return bandwidth / copy_bandwidth if copy_bandwidth and bandwidth else None

    def write(self, path: Path) -> None:
        """Write the run as JSON. Each record also has its `setup_products` and `speedup`."""
        rows = [asdict(r) | {k: getattr(r, k) for k in ("setup_products", "speedup")} for r in self.records]
        header = {k: v for k, v in vars(self).items() if k != "records"}
        with replacing(path) as file:
            file.write(json.dumps(header | {"records": rows}, indent=1).encode())

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read a file that `write` wrote."""
        contents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        names = set(Record.__dataclass_fields__)
        records = tuple(Record(**{k: v for k, v in row.items() if k in names}) for row in contents.pop("records"))
        return cls(**contents, records=records)


def by_matrix(records: Iterable[Record]) -> dict[tuple[str, str, int | None], list[Record]]:
    """Group the records that may be compared: those with the same matrix, dtype and number of threads."""
    groups: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in records:
        groups.setdefault((record.matrix, record.dtype, record.threads), []).append(record)
    return groups


def with_reference(records: Sequence[Record]) -> list[Record]:
    """Return the records of one matrix with `reference` and `reference_us` filled in.

    On a GPU, the reference is the best time of the vendor's library, or of any library if the vendor's was not
    measured. On a CPU, it is the best time of any library with at most as many threads as the record has.
    """
    completed = []
    for record in records:
        rivals = [r for r in records if r.kind in ("vendor", "library") and r.us and r.status == "measured"]
        if record.threads is None:
            rivals = [r for r in rivals if r.kind == "vendor"] or rivals
        else:
            rivals = [r for r in rivals if (r.threads or 1) <= record.threads]
        names = "/".join(sorted({r.what.split()[0] for r in rivals}))
        best = min((r.us or math.inf for r in rivals), default=None)
        completed.append(replace(record, reference=f"{names} best-of" if rivals else "", reference_us=best))
    return completed


def geometric_mean(values: Iterable[float]) -> float | None:
    """Return the geometric mean, or None if there are no values.

    Examples
    --------
    >>> geometric_mean([1.0, 4.0]), geometric_mean([])
    (2.0, None)
    """
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None
