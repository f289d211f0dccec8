"""A profile as JSON, and as a trace for Perfetto and Chrome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gsparse.profiling.caller import text_of_place
from gsparse.profiling.recording import Span
from gsparse.profiling.rows import Row, text_of_matrix

__all__ = ["as_chrome_trace", "as_json"]

# The numbers of the processes in a trace. Devices follow, one number each.
_HOST = 1


def as_json(
    rows: Mapping[str, Sequence[Row]], seconds: float, advice: Sequence[str], bandwidths: dict[str, float]
) -> str:
    """Return the rows as JSON."""
    tables = {f"by_{by}": [asdict(row) for row in some] for by, some in rows.items()}
    return json.dumps({"seconds": seconds, "advice": advice, "copy_bandwidths": bandwidths, **tables}, indent=1)


def as_chrome_trace(spans: Sequence[Span], begin: float) -> str:
    """Return spans as complete events of Chrome's trace format, with the threads and the streams as rows.

    Parameters
    ----------
    spans : sequence of Span
        Their times on devices are known.
    begin : float
        The time that is 0 in the trace.
    """
    events: list[dict[str, Any]] = [_naming("process_name", _HOST, 0, "host")]
    devices: dict[str, int] = {}
    streams: dict[tuple[str, Any], int] = {}
    for span in spans:
        event = {
            "name": f"{span.kind}: {span.name}",
            "cat": span.kind,
            "ph": "X",
            "pid": _HOST,
            "tid": span.thread,
            "ts": 1e6 * (span.begin - begin),
            "dur": 1e6 * span.seconds,
            "args": {"line": text_of_place(span.place), "matrix": text_of_matrix(span.matrix), "bytes": span.nbytes},
        }
        events.append(event)
        if span.device is None or span.device_begin is None:
            continue
        device = span.device.name
        if device not in devices:
            devices[device] = _HOST + 1 + len(devices)
            events.append(_naming("process_name", devices[device], 0, device))
        if (device, span.stream) not in streams:
            streams[device, span.stream] = 1 + len(streams)
            events.append(
                _naming("thread_name", devices[device], streams[device, span.stream], f"stream {span.stream}")
            )
        on_device = {"pid": devices[device], "tid": streams[device, span.stream]}
        times = {"ts": 1e6 * (span.device_begin - begin), "dur": 1e6 * (span.device_seconds or 0.0)}
        events.append({**event, **on_device, **times})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def _naming(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """Return the event that names a process or a thread of the trace."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
