"""Sparse algebra: products, sums, selections, writes and reductions of matrices on the device."""

from __future__ import annotations

import operator
import warnings

import numpy as np
from scipy.sparse import SparseEfficiencyWarning

from .common import WithMatrices, matrix, vector

# Functions of a matrix, of another one of the same shape, and of row numbers in random order.
OPERATIONS = {
    "A @ B": lambda A, B, rows: A @ B,
    "A + B": lambda A, B, rows: A + B,
    "A.multiply(B)": lambda A, B, rows: A.multiply(B),
    "A > B": lambda A, B, rows: A > B,
    "A[rows]": lambda A, B, rows: A[rows],
    "A[:, rows]": lambda A, B, rows: A[:, rows],
    "A.sum(axis=0)": lambda A, B, rows: A.sum(axis=0),
    "A.sum(axis=1)": lambda A, B, rows: A.sum(axis=1),
    "A.max(axis=1)": lambda A, B, rows: A.max(axis=1),
    "A.diagonal()": lambda A, B, rows: A.diagonal(),
    "A * 2": lambda A, B, rows: A * 2.0,
    "first product of A * 2": lambda A, B, rows: (A * 2.0) @ vector(A.shape[1]),
    "first product of A + B": lambda A, B, rows: (A + B) @ vector(A.shape[1]),
}


class Operations(WithMatrices):
    """One operation on two matrices of the 7-point problem."""

    params = (tuple(OPERATIONS),)
    param_names = ("operation",)

    def prepare(self, operation):
        self.A = matrix("7-point")
        self.B = self.A.T.tocsr()
        self.rows = self.A.device.upload(np.random.default_rng(0).permutation(self.A.shape[0]))
        self.time_operation(operation)

    def time_operation(self, operation):
        OPERATIONS[operation](self.A, self.B, self.rows)
        self.A.device.synchronize()


# Reads of entries, and writes to a copy of a matrix; the copy shares the arrays until it is written.
EDITS = {
    "A[5, 5]": lambda A, rows: A[5, 5],
    "A[7]": lambda A, rows: A[7],
    "A[rows, rows]": lambda A, rows: A[rows, rows],
    "A[5, 5] = 3": lambda A, rows: A.copy().__setitem__((5, 5), 3.0),
    "A[rows, rows] = 3": lambda A, rows: A.copy().__setitem__((rows, rows), 3.0),
    "A[:100, :100] = 3": lambda A, rows: A.copy().__setitem__((slice(0, 100), slice(0, 100)), 3.0),
    "A.setdiag(3)": lambda A, rows: A.copy().setdiag(3.0),
    "A.setdiag(3, 3)": lambda A, rows: A.copy().setdiag(3.0, 3),
    "A *= 2": lambda A, rows: A.copy().__imul__(2.0),
    "A.eliminate_zeros()": lambda A, rows: A.copy().eliminate_zeros(),
    "A.tocoo()": lambda A, rows: A.tocoo(),
}


class Edits(WithMatrices):
    """One read of entries, or one write, of the 7-point problem."""

    params = (tuple(EDITS),)
    param_names = ("edit",)

    def prepare(self, edit):
        warnings.simplefilter("ignore", SparseEfficiencyWarning)
        self.A = matrix("7-point")
        self.rows = self.A.device.upload(np.random.default_rng(0).permutation(self.A.shape[0]))
        self.time_edit(edit)

    def time_edit(self, edit):
        EDITS[edit](self.A, self.rows)
        self.A.device.synchronize()


class Transpose(WithMatrices):
    """The transpose by rows, of a matrix that has none yet."""

    params = (("7-point", "uniform", "R-MAT"),)
    param_names = ("matrix",)

    def prepare(self, name):
        self.A = matrix(name)
        self.time_transpose(name)

    def time_transpose(self, name):
        self.A.release()
        self.A.T.tocsr()
        self.A.device.synchronize()


class NewValues(WithMatrices):
    """The product of two matrices whose structures have been multiplied before, beside the whole product."""

    params = (("whole product", "new values"),)
    param_names = ("product",)

    def prepare(self, product):
        from gsparse.sparse.arithmetic import CsrProduct

        A = matrix("7-point")
        self.device, csr = A.device, A._prepared()[0].csr
        with self.device.active():
            again = CsrProduct(self.device, csr, csr)
        self.multiply = {"whole product": lambda: operator.matmul(A, A), "new values": lambda: again.update(csr, csr)}
        self.time_product(product)

    def time_product(self, product):
        with self.device.active():
            self.multiply[product]()
            self.device.synchronize()
