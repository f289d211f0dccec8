"""One array of a matrix, with a copy on the device and a copy on the host: which copy is valid, and when to copy.

The host copy is made when the user first asks for it (`A.data`). From then on the user may write to it, also through
views, and such writes cannot be observed. But references to the host copy can be counted, including weak ones. While
the user holds a reference, the array is *on loan*:

                            lend()                                the user drops the last reference
    device copy is valid  ---------->  on loan: host copy is valid  ---------->  returned, host copy is valid
            ^                          each product uploads it again                          |
            |                                                                                 |
            +------------- one more upload, by the next product (`current_array`) ------------+

If the host is the device, the last upload copies nothing: the memory of the host copy becomes the device copy. But if
the user wrote nothing, the old device copy stays, and with it the format and the plan. If nothing has been built from
the device copy, and no other code refers to it, `lend` copies nothing either: the device copy becomes the host copy.

Two rules make this safe. First, the device copy is never written in place: a changed array is a new array. So matrices
may share device arrays, and anything built from an array is valid as long as the matrix has the same array object.
Second, an array on loan never shares memory with a device copy, even if the host is the device. Arrays are checked once
and then trusted, so a write by another thread could make a kernel access memory outside of the arrays.
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

# Number of bytes that are compared at a time.
_BLOCK = 2**18


class ArrayPair:
    """One array of a matrix, with a copy on the device, a copy on the host, or both.

    Parameters
    ----------
    device : Device
    host : ndarray, optional
        It is used without a copy, and counts as on loan while any other code refers to it.
    on_device : array, optional
        It is used without a copy, and never written to.
    conjugated : bool
        Whether the values are the conjugates of those in `on_device`. Products conjugate as they read, and the
        conjugates are computed only for the host copy.

    Attributes
    ----------
    on_device : array or None
        The device copy, as of the last upload.
    lent : bool
        Whether the host copy may differ from the device copy.
    was_lent : bool
        Whether properties that the user declared (such as ``symmetric=True``) may no longer hold: since the last
        `make_device_current`, the host copy was on loan, or the array was replaced.
    version : int
        Number of times that the host copy was lent or the array was replaced.
    frozen : bool
        Whether only read-only arrays are lent (`freeze`).
    """

    lock = lock_of_instance()
    # The attributes of a pair that has no host copy. Most results of operations never have one.
    frozen = lent = was_lent = False
    version = 0
    _host: npt.NDArray[Any] | None = None
    _reading: npt.NDArray[Any] | None = None

    def __init__(
        self,
        device: Device,
        *,
        host: npt.NDArray[Any] | None = None,
        on_device: Array | None = None,
        conjugated: bool = False,
    ) -> None:
        self.device, self.on_device = device, on_device
        self.conjugated = conjugated
        if host is not None:
            self._host, self.lent, self.was_lent = host, True, True

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype: np.dtype[Any] = (self._host if self.on_device is None else self.on_device).dtype  # type: ignore[union-attr]
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the array, counted once even if there are two copies."""
        return int((self._host if self.on_device is None else self.on_device).nbytes)  # type: ignore[union-attr]

    @property
    def on_loan(self) -> bool:
        """Whether the writable host copy was lent and code outside of this object still refers to it."""
        if not self.lent:
            return False
        with self.lock:
            return self.lent and not self.frozen and held_elsewhere(self._host, self._own_references())

    def lend(self) -> npt.NDArray[Any]:
        """Return the writable host copy, or a read-only array if frozen. Synchronizes.

        Further calls return the same array while it is valid.
        """
        with self.lock:
            if self.frozen:
                return self.read()
            if self._host is None and self.device.is_host and not self.conjugated:
                self._take_device_copy()
            host = self._host_side()
            self.lent = self.was_lent = True
            self.version += 1
            return host

    def read(self) -> npt.NDArray[Any]:
        """Return a read-only host array for internal use. It does not count as a loan. Synchronizes.

        If the host is the device, the array shares the memory of the device copy, unless it is lent or conjugated.
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
                # Count the references before the upload: if there are none then, nobody can write after the upload
                # either.
                on_loan = self.on_loan
                form = self._device_form(may_be_written=on_loan)
                # If nothing was written, formats that were built from the device copy remain valid.
                if not (self.device.is_host and _have_same_bits(form, self.on_device)):
                    self.on_device = self.device.upload(form)
                if self.device.is_host and not on_loan:
                    self._host = None  # From now on, the device copy has its memory.
                self.lent = on_loan
            return self.on_device

    def make_device_current(self) -> None:
        """Upload the host copy and end its loan.

        If the host is the device and other code still refers to the memory of the host copy, this memory is copied.
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
        """Return the host copy in native byte order and, if `conjugated`, conjugated.

        Parameters
        ----------
        may_be_written : bool
            Whether other code may still write to the host copy. Then the result is a copy if the host is the device.
        """
        assert self._host is not None
        form = in_native_order(self._host)
        form = np.conjugate(form) if self.conjugated else form
        return form.copy() if may_be_written and self.device.is_host and form is self._host else form

    def replace(self, array: Array, *, keeps_declarations: bool = False) -> None:
        """Replace the device array by another one, which must not be written afterwards. No host copy may be on loan.

        Parameters
        ----------
        array : array
        keeps_declarations : bool
            Whether properties that the user declared, such as a symmetry, still hold.
        """
        with self.lock:
            self.on_device, self.conjugated = array, False
            self._host = self._reading = None
            self.lent = False
            self.was_lent = self.was_lent or not keeps_declarations
            self.version += 1

    def share(self, *, flip: bool = False) -> ArrayPair:
        """Return another pair with the same device array. Writing to one host copy does not change the other.

        If no device supports the dtype, the new pair has a copy of the host array.

        Parameters
        ----------
        flip : bool
            Whether the new pair has the conjugates of these values.
        """
        if self.dtype.char in HOST_ONLY:
            with self.lock:
                host = np.array(self._host_side())
            return ArrayPair(self.device, host=np.conjugate(host) if flip else host)
        return ArrayPair(self.device, on_device=self.current_array(), conjugated=self.conjugated != flip)

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
        """Lend read-only arrays from now on. A writable array that is still on loan no longer belongs to the matrix."""
        with self.lock:
            if self.on_loan:
                self._host = np.array(self._host)
            self.frozen = True

    def drop_host(self) -> None:
        """Drop a host copy to which no other code refers."""
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

    def _take_device_copy(self) -> None:
        """Make the device copy the host copy, if it is writable and no other code refers to it."""
        self._reading = None
        self.lent = True  # From now on, another thread needs the lock to read the device copy.
        self.lent = (
            self.on_device is not None and self.on_device.flags.writeable and not held_elsewhere(self.on_device, 1)
        )
        if self.lent:
            self._host, self.on_device = self.on_device, None

    def _own_references(self) -> int:
        """Return the number of this object's references to the host copy: its own, and its read-only alias."""
        return 1 + (self._reading is not None and _memory(self._reading) is self._host)


def _have_same_bits(array: npt.NDArray[Any], other: npt.NDArray[Any] | None) -> bool:
    """Return whether two contiguous arrays have the same dtype and bits. Stops at the first block that differs."""
    if other is None or (array.dtype, array.shape) != (other.dtype, other.shape) or not array.flags.c_contiguous:
        return False
    a, b = (each.reshape(-1).view(np.uint8) for each in (array, other))
    return all(np.array_equal(a[k : k + _BLOCK], b[k : k + _BLOCK]) for k in range(0, a.size, _BLOCK))


def _memory(alias: npt.NDArray[Any]) -> Any:
    """Return the host array of which an array is an alias (`gsparse.device.memory.alias_of`), or None."""
    return getattr(alias.base, "owner", None)


def held_elsewhere(array: npt.NDArray[Any] | None, own: int) -> bool:
    """Return whether other code refers to an array, or to the array whose memory it uses.

    Every NumPy view refers to the array that owns the memory, so it is enough to count the references to that array. A
    live weak reference counts too, because it can become a reference at any time.

    Parameters
    ----------
    array : ndarray
    own : int
        Number of references that this package is known to hold, without local variables of the caller: these count as
        references of other code.
    """
    while array is not None and sys.getrefcount(array) <= own + _CALL_REFERENCES and not getweakrefcount(array):
        base = array.base
        if base is not None and not isinstance(base, np.ndarray):
            return True  # The owner of the memory is not an array, so references to it cannot be counted.
        array, own = base, 1
        del base  # `base` itself must not count as a reference.
    return array is not None


def _call_references() -> int:
    """Count the references that a function call and the counting add in this Python interpreter."""

    class Holder:
        array = np.empty(1)

    def count(array: npt.NDArray[Any]) -> int:
        return sys.getrefcount(array)

    return count(Holder.array) - 1


_CALL_REFERENCES = _call_references()
