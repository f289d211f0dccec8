"""What a worker logs of tasks that fail: one line, because the user's process raises the error with its traceback."""

from __future__ import annotations

import logging

# The beginning of dask's message about a task that has failed. The first argument is the key of the task, the fourth is
# the text of the error.
_FAILURE = "Compute Failed"


def shorten_task_logs() -> None:
    """Make dask log one line, without a traceback, of each task of gsparse that fails on this worker."""
    logging.getLogger("distributed.worker").addFilter(_one_line)


def _one_line(record: logging.LogRecord) -> bool:
    """Shorten the record of a failed task of gsparse. If dask changes its message, it is logged as it is."""
    args = record.args
    if isinstance(args, tuple) and len(args) > 3 and str(record.msg).startswith(_FAILURE):
        key, error = str(args[0]), str(args[3])
        if key.startswith("gsparse-"):
            record.msg, record.args = "%s has failed; the client raises the error: %.500s", (key, error)
    return True
