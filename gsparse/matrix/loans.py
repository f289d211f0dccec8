"""One array of a matrix with a copy on the device and a copy on the host: which of them is valid, and when to copy.

The host copy is made when the user first asks for it (`A.data`). From then on it may be written to, through the array
itself or through any view of it, and nothing can watch such writes. But the references to it can be counted, also weak
ones. While there is one, the array is *on loan*:

                            lend()                                the user drops the last reference
    device copy is valid  ---------->  on loan: host copy is valid  ---------->  returned, host copy is valid
            ^                          each product uploads it again                          |
            |                                                                                 |
            +------------- one more upload, by the next product (`current_array`) ------------+

Where the host is the device, the last upload copies nothing: the memory of the host copy becomes the device copy. If
nothing was written, the device copy stays instead, and with it the format and the plan.

Two rules make this safe. The device copy is never written in place: a changed array is a new array. So matrices may
share device arrays, and what was built from an array is valid as long as the matrix has this very array. And an array
on loan never has the memory of a device copy, also where the host is the device. Kernels check arrays once and then
trust them, so a write by another thread could make them read and write outside of their arrays.
"""

from __future__ import annotations

import sys
from typing import Any
from weakref import getweakrefcount

import numpy as np
import numpy.typing as npt

from gsparse.device.base import Device
from gsparse.device.dtypes import HOST_ONLY, Array, in_native_order
from gsparse.device.locks import lock_of_instance
from gsparse.device.memory import alias_of

# Number of bytes that are compared at once.
_BLOCK = 2**18


class ArrayPair:
    """One array with a device side and a host side.

    Parameters
    ----------
    device : Device
    host : ndarray, optional
        It is used without a copy, and counts as on loan as long as the caller or others refer to it.
    on_device : array, optional
        It is used without a copy, and never written to.
    conjugated : bool
        Whether the array stands for its complex conjugate: products conjugate as they read, and the conjugate is only
        computed when the host asks for it.

    Attributes
    ----------
    on_device : array or None
        The device copy, as it was uploaded last.
    lent : bool
        Whether the host copy may differ from the device copy.
    was_lent : bool
        Whether, since the last `make_device_current`, the host copy was on loan or the array was replaced by one for
        which the properties that the user declared (such as ``symmetric=True``) may not hold.
    version : int
        Number of times that the host copy was lent or the array was replaced.
    frozen : bool
        Whether only read-only arrays are lent (`freeze`).
    """

    lock = lock_of_instance()

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
        self.version = 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype((self._host if self.on_device is None else self.on_device).dtype)  # type: ignore[union-attr]

    @property
    def nbytes(self) -> int:
        """Bytes of the array, counted once even if there are two copies."""
        return int((self._host if self.on_device is None else self.on_device).nbytes)  # type: ignore[union-attr]

    @property
    def on_loan(self) -> bool:
        """Whether the writable host copy was lent and somebody outside of this pair still refers to it."""
        if not self.lent:
            return False
        with self.lock:
            return self.lent and not self.frozen and held_elsewhere(self._host, self._own_references())

    def lend(self) -> npt.NDArray[Any]:
        """Return the writable host copy, the same one while it is valid; a read-only array if frozen. Synchronizes."""
        with self.lock:
            if self.frozen:
                return self.read()
            host = self._host_side()
            self.lent = self.was_lent = True
            self.version += 1
            return host

    def read(self) -> npt.NDArray[Any]:
        """Return a read-only host array, for our own use: it does not count as a loan. Synchronizes.

        Where the host is the device, it shows the memory of the device copy, unless the array is lent or conjugated.
        """
        with self.lock:
            is_device_copy = self.device.is_host and not self.lent and not self.conjugated
            memory: Any = self.on_device if is_device_copy else self._host_side()
            if self._reading is None or _memory(self._reading) is not memory:
                self._reading = alias_of(memory)
                self._reading.flags.writeable = False
            return self._reading

    def current_array(self) -> Array:
        """Return the device copy, after an upload if the host copy may differ."""
        if not self.lent:
            return self.on_device
        with self.lock:
            if self.lent and self._host is not None:
                # References are counted before the upload: if there are none then, nobody can write after it either.
                on_loan = self.on_loan
                form = self._device_form(may_be_written=on_loan)
                # If nothing was written, what was built from the device copy remains valid.
                if not (self.device.is_host and _have_same_bits(form, self.on_device)):
                    self.on_device = self.device.upload(form)
                if self.device.is_host and not on_loan:
                    self._host = None  # Its memory is that of the device copy from now on.
                self.lent = on_loan
            return self.on_device

    def make_device_current(self) -> None:
        """Upload the host copy and end its loan.

        Where the host is the device, memory that somebody else still refers to is copied first.
        """
        with self.lock:
            if self._host is None:
                return
            self.on_device = self.device.upload(
                self._device_form(may_be_written=held_elsewhere(self._host, self._own_references()))
            )
            self._host = None
            self.lent = self.was_lent = False

    def _device_form(self, *, may_be_written: bool) -> npt.NDArray[Any]:
        """Return the host copy in native byte order, and conjugated if the pair is.

        Parameters
        ----------
        may_be_written : bool
            Whether somebody else may still write to the host copy. Then the result is a copy where the host is the
            device.
        """
        assert self._host is not None
        form = in_native_order(self._host)
        form = np.conjugate(form) if self.conjugated else form
        return form.copy() if may_be_written and self.device.is_host and form is self._host else form

    def replace(self, array: Array, *, keeps_declarations: bool = False) -> None:
        """Replace the device array by another one, to which nobody may write. No host copy may be on loan.

        Parameters
        ----------
        array : array
        keeps_declarations : bool
            Whether the matrix is still what the user declared it to be.
        """
        with self.lock:
            self.on_device, self.conjugated = array, False
            self._host = self._reading = None
            self.lent = False
            self.was_lent = self.was_lent or not keeps_declarations
            self.version += 1

    def share(self, *, flip: bool = False) -> ArrayPair:
        """Return another pair over the same device array; a write to either host copy leaves the other unchanged.

        For a dtype that only the host has, the new pair has a copy of the host array.

        Parameters
        ----------
        flip : bool
            Whether the new pair stands for the conjugate of this one.
        """
        with self.lock:
            if self.dtype.char in HOST_ONLY:
                host = np.array(self._host_side())
                return ArrayPair(self.device, host=np.conjugate(host) if flip else host)
            array = self.current_array()
        return ArrayPair(self.device, on_device=array, conjugated=self.conjugated != flip)

    def is_lent_array(self, array: Any) -> bool:
        """Return whether `array` is the host copy that was lent.

        ``A.data *= 2`` changes that copy in place and then assigns it to ``A.data``. A frozen pair lends read-only
        views, so any array that shows the whole host copy counts.
        """
        if not self.frozen:
            return array is self._host and array is not None
        lent = self._reading
        if lent is None or not isinstance(array, np.ndarray) or (array.dtype, array.shape) != (lent.dtype, lent.shape):
            return False
        return array.ctypes.data == lent.ctypes.data

    def freeze(self) -> None:
        """Lend read-only arrays from now on; a writable array that is still on loan no longer belongs to the matrix."""
        with self.lock:
            if self.on_loan:
                self._host = np.array(self._host)
            self.frozen = True

    def drop_host(self) -> None:
        """Drop a host copy that nobody refers to."""
        with self.lock:
            if self.on_device is not None and not self.on_loan:
                self.current_array()
                self._host = self._reading = None

    def _host_side(self) -> npt.NDArray[Any]:
        if self._host is None:
            host = self.device.download(self.on_device)
            if self.conjugated:
                np.conjugate(host, out=host)
            self._host = host
        return self._host

    def _own_references(self) -> int:
        """Count our own references to the host copy: by the pair, and by the read-only alias of it."""
        return 1 + (self._reading is not None and _memory(self._reading) is self._host)


def _have_same_bits(array: npt.NDArray[Any], other: npt.NDArray[Any] | None) -> bool:
    """Return whether contiguous arrays have the same dtype and bits. They are compared up to the first difference."""
    if other is None or (array.dtype, array.shape) != (other.dtype, other.shape) or not array.flags.c_contiguous:
        return False
    a, b = (each.reshape(-1).view(np.uint8) for each in (array, other))
    return all(np.array_equal(a[k : k + _BLOCK], b[k : k + _BLOCK]) for k in range(0, a.size, _BLOCK))


def _memory(alias: npt.NDArray[Any]) -> Any:
    """Return the host array of which an array is an alias (`gsparse.device.memory.alias_of`), or None."""
    return getattr(alias.base, "owner", None)


def held_elsewhere(array: npt.NDArray[Any] | None, own: int) -> bool:
    """Return whether anybody else refers to an array, or to the array whose memory it shows.

    NumPy makes every view refer to the array that owns the memory: counting the references to that one is enough. A
    live weak reference counts as well, because it can become a reference at any time.

    Parameters
    ----------
    array : ndarray
    own : int
        How many references are known to be ours. Local variables of the caller are not included and count as
        references of others.
    """
    while array is not None and sys.getrefcount(array) <= own + _CALL_REFERENCES and not getweakrefcount(array):
        base = array.base
        if base is not None and not isinstance(base, np.ndarray):
            return True  # The memory belongs to an object that is no array, so its references cannot be counted.
        array, own = base, 1
        del base  # `base` itself must not count as a reference.
    return array is not None


def _call_references() -> int:
    """Count the references that a call and the counting itself add on this interpreter."""

    class Holder:
        array = np.empty(1)

    def count(array: npt.NDArray[Any]) -> int:
        return sys.getrefcount(array)

    return count(Holder.array) - 1


_CALL_REFERENCES = _call_references()
