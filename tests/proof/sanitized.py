"""Run pytest with the emulated kernels under a sanitizer: ``python tests/proof/sanitized.py asan -- tests/... -k ...``.

Python is not instrumented, so the sanitizer's runtime library is preloaded: `sanitized_command` sets the environment
for that. This file imports neither the project nor numba, whose threads confuse sanitizers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from shutil import which

__all__ = ["MISSING_TOOLS", "sanitized_command"]

RUNTIMES = {"asan": ("libasan.so", "libubsan.so"), "tsan": ("libtsan.so",)}
SETTINGS = {
    # Python does not free all memory at its end, so leaks are not reported.
    "asan": {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
    # A report does not end the run, but makes the exit status 66.
    "tsan": {"TSAN_OPTIONS": "halt_on_error=0:exitcode=66:history_size=2"},
}
# TSan needs fixed addresses, which address space randomization may have used already.
PREFIX = {"asan": (), "tsan": ("setarch", "-R")}

MISSING_TOOLS = {
    name: f"{name} needs {tool}"
    for name, tool in (("asan", "g++"), ("tsan", "g++"), ("tsan", "setarch"))
    if not which(tool)
}


def sanitized_command(
    sanitizer: str, command: Sequence[str], environment: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the environment that run `command` under a sanitizer ("" for none)."""
    if not sanitizer:
        return list(command), {**environment, "GSPARSE_EMULATOR_SANITIZER": ""}
    runtimes = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in RUNTIMES[sanitizer]
    ]
    changes = {"GSPARSE_EMULATOR_SANITIZER": sanitizer, "LD_PRELOAD": " ".join(runtimes), **SETTINGS[sanitizer]}
    return [*PREFIX[sanitizer], *command], {**environment, **changes}


def main(arguments: Sequence[str]) -> None:
    if len(arguments) < 3 or arguments[0] not in RUNTIMES or arguments[1] != "--":
        raise SystemExit(f"usage: sanitized.py {{{'|'.join(RUNTIMES)}}} -- pytest arguments")
    if arguments[0] in MISSING_TOOLS:
        raise SystemExit(MISSING_TOOLS[arguments[0]])
    # A sanitizer writes to the streams of the process and then ends it, so pytest must not capture them.
    pytest = [sys.executable, "-m", "pytest", "--capture=sys", "-p", "no:cacheprovider", *arguments[2:]]
    command, environment = sanitized_command(arguments[0], pytest, os.environ)
    os.execvpe(command[0], command, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
