"""A preload of dask for machines without UCX: addresses that begin with ``ucxx://``, over TCP."""

from __future__ import annotations

from distributed.comm.registry import backends
from distributed.comm.tcp import TCPBackend, TCPConnector, TCPListener


class Connector(TCPConnector):  # type: ignore[misc]
    """Connects over TCP."""

    prefix = "ucxx://"


class Listener(TCPListener):  # type: ignore[misc]
    """Listens over TCP."""

    prefix = "ucxx://"


class Backend(TCPBackend):  # type: ignore[misc]
    """Stands for the backend of distributed-ucxx."""

    _connector_class, _listener_class = Connector, Listener


backends["ucxx"] = Backend()
