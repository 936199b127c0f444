"""A model while it is being drawn: tensors and operators before they become records of a file.

A draft may carry the values that a few sample frames give every tensor.  They set the scale of the
random weights (so that activations neither vanish nor explode) and the ranges of quantised models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.flatbuffer.records import Options, Quantization

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class DraftTensor:
    """A tensor, by identity.

    Parameters
    ----------
    index
        Position among the draft's tensors.
    name
        Name in the file.
    shape
        All dimensions known.
    dtype
        Element type as numpy has it.
    constant
        The values of a constant, in the file's layout; None for everything else.
    sample
        The values that the sample frames give this tensor (float64, or integers for indices), of
        shape (frames, *shape[1:]); None when the draft is drawn without a sample.  A finished draft
        keeps those of its inputs and outputs only.
    limits
        Smallest and largest value of the sample; None without one.
    variable
        Whether the tensor keeps its values from one frame to the next.
    quantization
        Scale and zero point of a quantised tensor.
    """

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    constant: Array | None = None
    sample: Array | None = None
    limits: tuple[float, float] | None = None
    variable: bool = False
    quantization: Quantization | None = None

    @property
    def values(self) -> Array | None:
        """What the tensor holds for the sample frames, constants included; None when not known."""
        if self.constant is None:
            return self.sample
        if self.constant.dtype.kind == "f":
            return self.constant.astype(np.float64)
        return self.constant

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class DraftOperator:
    """An operator.

    Parameters
    ----------
    op
        The schema's name, for example ``CONV_2D``.
    inputs
        Tensor indices; None for an optional input that is left out.
    outputs
        Tensor indices.
    options
        The operator's options table, when it has one.
    version
        Operator version that the signature needs.
    """

    op: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    options: Options | None = None
    version: int = 1


@dataclass(frozen=True, slots=True)
class Draft:
    """A complete drawing: everything that a file needs.

    Parameters
    ----------
    name
        Name of the subgraph and, with the parameters, the file's description.
    description
        Free text for the file.
    tensors, operators
        Operators in execution order.
    inputs, outputs
        Tensor indices of the model's inputs and outputs.
    """

    name: str
    description: str
    tensors: tuple[DraftTensor, ...]
    operators: tuple[DraftOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def n_parameters(self) -> int:
        """Number of trained values: all floating-point constants with more than one element."""
        return sum(
            tensor.n_elements
            for tensor in self.tensors
            if tensor.constant is not None and tensor.dtype.kind == "f" and tensor.n_elements > 1
        )
