"""The command ``bench``: its arguments, its output and its exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import gsparse
from gsparse._version import install_command
from gsparse.bench import report
from gsparse.bench.assembled import assembled_names
from gsparse.bench.problems import MODEL_PROBLEMS, Problem, all_problems, find_problem
from gsparse.bench.records import Run
from gsparse.bench.runner import Settings
from gsparse.bench.runner import run as run_all
from gsparse.device.select import get_device
from gsparse.device.threads import available_cpus
from gsparse.errors import GsparseError

DTYPES = ("float64", "float32")
THREADS = (1, 2, 4, 8, 16)
PICTURES = (".png", ".pdf", ".svg")

# The problems that `--quick` measures in about a minute, by the kind of device. A GPU needs larger matrices, because a
# launch takes as long as the product of a small one.
QUICK_PROBLEMS = {
    "cpu": (
        *("7-point 40^3 constant", "7-point 40^3 variable", "27-point 24^3 variable", "banded 20k x 24"),
        *("uniform 20k x 24", "R-MAT 15"),
    ),
    "gpu": (
        *("7-point 200^3 constant", "7-point 200^3 variable", "27-point 128^3 variable", "banded 2M x 24"),
        *("uniform 2M x 24", "R-MAT 21"),
    ),
}
_QUICK_REPEATS = 7

EPILOG = """\
examples:
  python -m gsparse bench --quick --plot out.png    six model problems in a minute, with a picture
  python -m gsparse bench matrix.mtx.gz             one file, of any kind that gsparse info reads
  python -m gsparse bench "R-MAT 15" "R-MAT 21"     two model problems; --list prints their names
  python -m gsparse bench --all --json all.json     all problems
  python -m gsparse bench --all --columns 1,8,64    products with dense columns

The environment variable GSPARSE_MATRICES names a folder of .npz files, which can be given by their names too.

exit code: 0; 1 if a product was wrong or a matrix could not be measured; 2 if the command cannot run as given
"""


class UsageError(GsparseError):
    """The command cannot run with these arguments. The message says what to change."""


def _counts(text: str) -> tuple[int, ...]:
    """Parse "1,2,4" or "1e3,1e4"."""
    counts = [float(part) for part in text.split(",") if part]
    if not counts or not all(count.is_integer() and count >= 1 for count in counts):
        raise ValueError(text)
    return tuple(map(int, counts))


_counts.__name__ = "list of counts"  # argparse prints this name in its error message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``bench``."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EPILOG
    problems = parser.add_argument_group("problems")
    problems.add_argument(
        "names", nargs="*", metavar="FILE|NAME", help="a file, a model problem, or a matrix from an application"
    )
    problems.add_argument("--name", metavar="NAME", help="the variable to read from a .mat file that holds several")
    problems.add_argument("--quick", action="store_true", help="six model problems in a minute, in the chosen format")
    problems.add_argument(
        "--all", action="store_true", help="all model problems, and matrices from applications from 1e5 nonzeros"
    )
    problems.add_argument("--assembled", action="store_true", help="finite-element matrices (needs scikit-fem)")
    problems.add_argument("--list", action="store_true", help="print the names of the problems, and stop")
    method = parser.add_argument_group("measurement")
    method.add_argument("--device", help="auto, cpu, gpu or gpu:N (default: GSPARSE_DEVICE, else auto)")
    method.add_argument("--dtype", action="append", choices=DTYPES, help="may be given twice (default: float64)")
    method.add_argument("--formats", metavar="NAME,NAME", help=f"out of {', '.join(gsparse.FORMATS)} (default: all)")
    method.add_argument(
        "--columns", type=_counts, metavar="N,N", help="of a dense X, such as 1,8,64: A @ X (default: A @ x)"
    )
    method.add_argument(
        "--threads",
        type=_counts,
        metavar="N,N",
        help="on a CPU: numbers of threads (default: those of 1,2,4,8,16 that this machine has CPUs for; --quick: one "
        "thread for each CPU)",
    )
    method.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help=f"samples of a median (default: {Settings.repeats}; {_QUICK_REPEATS} with --quick)",
    )
    method.add_argument("--check", action="store_true", help="compare each product with extended precision, by row")
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the records")
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw the times: .png, .pdf or .svg (needs matplotlib)"
    )


def execute(options: argparse.Namespace) -> Run | None:
    """Measure, print and write. Return the run, or None for `--list`, which measures nothing.

    Raises
    ------
    UsageError, GsparseError
        If the command cannot run with these arguments. Raised before anything is measured.
    OSError
        If a problem is not found, also before anything is measured; or if the records cannot be written at the end.
    """
    if options.list:
        names = dict.fromkeys([*MODEL_PROBLEMS, *assembled_names(), *(problem.name for problem in all_problems(0))])
        print("\n".join(names))
        return None
    check_outputs(options)
    settings, problems = settings_of(options), list(problems_of(options))
    total, done = len(problems) * len(settings.dtypes) * max(1, len(settings.columns)), count()

    def show(part: Run) -> None:
        print(report.part_of_run(part), flush=True)
        print(f"[{next(done)} of {total}]", file=sys.stderr, flush=True)

    results = run_all(problems, settings, show)
    print("\n" + report.summary(results))
    if options.json:
        results.write(options.json)
    return results


def check_outputs(options: argparse.Namespace) -> None:
    """Raise an error for outputs that could not be written, before an hour is spent on measuring."""
    if options.json:
        require_folder("--json", options.json)
    if options.plot:
        require_picture(options.plot)


def require_folder(option: str, path: Path) -> None:
    """Raise an error if the folder of an output file does not exist, or if the file is an existing folder."""
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {path.absolute().parent}")


def require_picture(path: Path) -> None:
    """Raise an error if a picture cannot be written to this file."""
    if path.suffix.lower() not in PICTURES:
        raise UsageError(f"--plot {path}: name a file that ends with {', '.join(PICTURES)}")
    require_folder("--plot", path)
    if not find_spec("matplotlib"):
        raise UsageError(f"--plot needs matplotlib: {install_command('plot')}")


def problems_of(options: argparse.Namespace) -> Iterator[Problem]:
    """Yield the problems that the command names. All names are checked before the first matrix is made."""
    if options.quick:
        yield from map(find_problem, QUICK_PROBLEMS[get_device(options.device).kind])
    if options.all:
        yield from all_problems()
    if options.assembled:
        yield from map(find_problem, assembled_names())
    yield from [find_problem(name, options.name) for name in options.names]
    if not (options.quick or options.all or options.assembled or options.names):
        raise UsageError("name a file or a problem, or give --quick, --all or --assembled; --list prints the names")


def settings_of(options: argparse.Namespace) -> Settings:
    """Check the options and return the settings of the run."""
    formats = tuple(part for part in (options.formats or "").split(",") if part)
    unknown = [name for name in formats if name not in gsparse.FORMATS]
    if unknown:
        raise UsageError(f"--formats: no format {', '.join(unknown)}; there are {', '.join(gsparse.FORMATS)}")
    if options.columns and formats:
        raise UsageError("--columns measures gsparse's own choice: leave --formats out")
    if options.repeats is not None and options.repeats < 1:
        raise UsageError(f"--repeats: at least 1, got {options.repeats}")
    most = available_cpus()
    return Settings(
        device=get_device(options.device),
        dtypes=tuple(dict.fromkeys(options.dtype or DTYPES[:1])),
        formats=formats or (("auto",) if options.quick else ()),
        threads=options.threads or ((most,) if options.quick else tuple(n for n in THREADS if n <= most)),
        repeats=options.repeats or (_QUICK_REPEATS if options.quick else Settings.repeats),
        check=options.check,
        columns=options.columns or (),
    )


def exit_code(run: Run) -> int:
    """Return 1 if a product was wrong or a matrix could not be measured, else 0."""
    cases = {(r.matrix, r.dtype, r.columns, r.threads) for r in run.records}
    measured = {(r.matrix, r.dtype, r.columns, r.threads) for r in run.records if r.status == "measured"}
    return int(bool(run.errors) or cases != measured or any(record.correct is False for record in run.records))
