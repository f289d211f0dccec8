"""One array of a matrix, on the device and on loan to the host: which side rules, and when a copy is due.

The device side is never written in place: a changed array is a new array, so matrices may share device arrays and
tell by identity whether what they built from one is still true.

The host side is made when asked for and handed out as it is. From then on it may be written through any reference or
view, which nobody can watch; but references can be counted, also weak ones. While anything besides the mirror holds the
host array (or the array it is a view of), or holds a weak reference to it, the host rules and every product brings it
to the device again. When the last reference is gone, one copy follows and the device rules.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import getweakrefcount

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device, alias_of
from gsparse.device.dtypes import HOST_ONLY, Array
from gsparse.device.locks import make_lock

__all__ = ["Mirror", "held_elsewhere"]


class Mirror:
    """One array with a device side and a host side.

    Parameters
    ----------
    device : Device
    host : ndarray, optional
        Adopted, not copied: it counts as on loan for as long as somebody else holds it.
    on_device : array, optional
        Kept as it is and never written.
    conjugated : bool
        Whether the array stands for its complex conjugate: products conjugate as they read, and the conjugate is only
        formed when the host asks for it.

    Attributes
    ----------
    on_device : array or None
        The device side, as it was brought there last.
    lent : bool
        Whether the host side may differ from the device side.
    was_lent : bool
        Whether the host side was ever on loan: what was declared of the array before may no longer be true.
    """

    def __init__(
        self,
        device: Device,
        *,
        host: npt.NDArray[Any] | None = None,
        on_device: Array | None = None,
        conjugated: bool = False,
    ) -> None:
        self.device = device
        self.conjugated = conjugated
        self.frozen = False
        self._host = host
        self.on_device = on_device
        self.lent = self.was_lent = host is not None
        self._reading: npt.NDArray[Any] | None = None
        self.loans = 0
        self._lock = make_lock()

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype((self._host if self.on_device is None else self.on_device).dtype)  # type: ignore[union-attr]

    @property
    def nbytes(self) -> int:
        """Bytes of the array, counted once though both sides may have a copy."""
        return int((self._host if self.on_device is None else self.on_device).nbytes)  # type: ignore[union-attr]

    @property
    def on_loan(self) -> bool:
        """Whether somebody holds the host side now."""
        return self.lent and not self.frozen and held_elsewhere(self._host, self._own_references())

    def lend(self) -> npt.NDArray[Any]:
        """Hand out the host array: the same one each time, until a copy of it is the truth no longer. Synchronizes."""
        with self._lock:
            if self.frozen:
                return self.read()
            host = self._host_side()
            self.lent = self.was_lent = True
            self.loans += 1
            return host

    def read(self) -> npt.NDArray[Any]:
        """Give the host array's memory read-only, for our own use: it does not count as a loan. Synchronizes."""
        with self._lock:
            host = self._host_side()
            if self._reading is None or _memory(self._reading) is not host:
                self._reading = alias_of(host)
                self._reading.flags.writeable = False
            return self._reading

    def resident(self) -> Array:
        """Give the device array, brought up to date where the host ruled."""
        if not self.lent:
            return self.on_device
        with self._lock:
            if self.lent and self._host is not None:
                # Asked first and uploaded then: once nobody holds the array, nobody can write to it.
                on_loan = not self.frozen and held_elsewhere(self._host, self._own_references())
                host = _native(self._host)
                self.on_device = self.device.upload(np.conjugate(host) if self.conjugated else host)
                self.lent = on_loan
            return self.on_device

    def settle(self) -> None:
        """Make the device rule, whoever holds the host array: what enters is copied unless it is ours alone."""
        with self._lock:
            if self._host is None:
                return
            own = _native(self._host)
            if self.device.is_host and own is self._host:
                ours = self._own_references() + 1  # `own` itself
                own = own.copy() if held_elsewhere(self._host, ours) else own
            # On the CPU the two sides are one memory, and lending it costs nothing.
            self._host = own if self.device.is_host else None
            self.on_device = self.device.upload(own)
            self.lent = self.was_lent = False

    def share(self, *, flip: bool = False) -> Mirror:
        """Give a mirror of its own over the same device array; writing to either host side leaves the other alone.

        Parameters
        ----------
        flip : bool
            Whether the new one stands for the conjugate of this one.
        """
        with self._lock:
            if self.dtype.char in HOST_ONLY:
                host = np.array(self._host_side())
                return Mirror(self.device, host=np.conjugate(host) if flip else host)
            array = self.resident()
            if self.on_loan:
                with self.device.active(), self.device.memory_guard():
                    array = self.device.xp.array(array)
            elif self.device.is_host:
                self._host = self._reading = None  # there the two sides are one: the next loan of either is a copy
        return Mirror(self.device, on_device=array, conjugated=self.conjugated != flip)

    def is_host(self, array: Any) -> bool:
        """Tell whether `array` is what was lent, as it is after ``A.data *= 2``; or, of a frozen one, all of a view."""
        if not self.frozen:
            return array is self._host and array is not None
        lent = self._reading
        if lent is None or not isinstance(array, np.ndarray) or (array.dtype, array.shape) != (lent.dtype, lent.shape):
            return False
        return array.ctypes.data == lent.ctypes.data

    def freeze(self) -> None:
        """Hand out read-only arrays from now on; whoever holds a writable one is cut off."""
        with self._lock:
            if self.on_loan:
                self._host = np.array(self._host)
            self.frozen = True

    def drop_host(self) -> None:
        """Forget a host copy that nobody holds."""
        with self._lock:
            if self.on_device is not None and not self.on_loan:
                self.resident()
                self._host = self._reading = None

    def _host_side(self) -> npt.NDArray[Any]:
        if self._host is None:
            host = self.device.download(self.on_device)
            if self.conjugated:
                np.conjugate(host, out=host)
            self._host = host
        return self._host

    def _own_references(self) -> int:
        """Our own references to the host array: this mirror's, its reading's, and on the CPU the device side's."""
        aliases = (self._reading, self.on_device)
        return 1 + sum(isinstance(alias, np.ndarray) and _memory(alias) is self._host for alias in aliases)


def _memory(alias: npt.NDArray[Any]) -> Any:
    """Give the host array that an array is an alias of (`gsparse.device.alias_of`), if it is."""
    return getattr(alias.base, "owner", None)


def _native(host: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return host if host.dtype.isnative else host.astype(host.dtype.newbyteorder("="))


def held_elsewhere(array: npt.NDArray[Any] | None, own: int) -> bool:
    """Tell whether anybody but us holds an array or the array whose memory it shows.

    NumPy makes every view refer to the array that owns the memory, so counting references to that one is enough. A live
    weak reference counts as well: it can become a reference at any time.

    Parameters
    ----------
    array : ndarray
    own : int
        References to it that are ours, the caller's local names not counted.
    """
    while array is not None and sys.getrefcount(array) <= own + _CALL_REFERENCES and not getweakrefcount(array):
        base = array.base
        if base is not None and not isinstance(base, np.ndarray):
            return True  # memory of something that is no array: nobody knows who writes to it
        array, own = base, 1
        del base
    return array is not None


def _call_references() -> int:
    """Count the references that calling and counting add on this interpreter."""

    class Holder:
        array = np.empty(1)

    def count(array: npt.NDArray[Any]) -> int:
        return sys.getrefcount(array)

    return count(Holder.array) - 1


_CALL_REFERENCES = _call_references()
