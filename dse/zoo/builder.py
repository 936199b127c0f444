"""Drawing a model tensor by tensor: names, constants, seeded weights and operators."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dse.errors import InputError
from dse.flatbuffer.records import Options
from dse.zoo.draft import Array, Draft, DraftOperator, DraftTensor

# Small integer constants (shapes, axes, permutations) are shared as converters do.
SHARED_CONSTANT_BYTES = 64
# More than any published architecture here needs; beyond it the memory of most machines ends.
MAX_WEIGHT_BYTES = 4 << 30


class Builder:
    """Collects tensors and operators; the functions of the sibling modules draw with it.

    Parameters
    ----------
    name
        Name of the model.
    description
        Free text for the file.
    seed
        Seed of all weights.  The values of a weight depend on the seed and on its name only, so a
        layer keeps its weights when layers are added elsewhere.
    sampled
        Whether to work out every tensor for the sample frames while drawing (see ``draft``).
        The first dimension of all activations is the batch, which is 1 in the file.
    """

    def __init__(self, name: str, description: str, *, seed: int = 0, sampled: bool = False) -> None:
        self.name = name
        self.description = description
        self.seed = seed
        self.sampled = sampled
        self._weight_bytes = 0
        self._tensors: list[DraftTensor] = []
        self._operators: list[DraftOperator] = []
        self._inputs: list[int] = []
        self._names: set[str] = set()
        self._shared: dict[tuple[str, tuple[int, ...], bytes], DraftTensor] = {}
        self._scope: list[str] = []

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Put ``name/`` before the names of everything drawn inside."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def full_name(self, name: str) -> str:
        """Return a name with the scopes that are open."""
        return "/".join([*self._scope, name])

    def random(self, name: str, shape: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return seeded values, uniform in [-1, 1).

        Uniform, because these are exact on every platform: no library function is involved.

        Raises
        ------
        InputError
            The weights of the model together are beyond ``MAX_WEIGHT_BYTES``.
        """
        self._weight_bytes += 4 * math.prod(shape)
        if self._weight_bytes > MAX_WEIGHT_BYTES:
            raise InputError(
                f"{self.name}: the weights would be larger than {MAX_WEIGHT_BYTES >> 30} GiB; "
                "choose smaller parameters"
            )
        digest = hashlib.sha256(self.full_name(name).encode()).digest()
        entropy = [self.seed, *np.frombuffer(digest[:16], dtype="<u4").tolist()]
        values = np.random.Generator(np.random.PCG64(entropy)).random(tuple(shape), dtype=np.float32)
        values *= 2
        values -= 1
        return values

    def add_input(
        self, name: str, shape: Sequence[int], dtype: npt.DTypeLike = np.float32, sample: Array | None = None
    ) -> DraftTensor:
        """Add an input of the model; ``sample`` holds the sample frames (used when sampled)."""
        tensor = self._add(name, shape, dtype, sample=sample if self.sampled else None)
        self._tensors[tensor.index] = tensor
        self._inputs.append(tensor.index)
        return tensor

    def add_variable(self, name: str, shape: Sequence[int]) -> DraftTensor:
        """Add a float tensor that keeps its values between frames; it starts as zeros."""
        start = np.zeros(tuple(shape)) if self.sampled else None
        return self._add(name, shape, np.float32, sample=start, variable=True)

    def constant(self, values: npt.ArrayLike, name: str, dtype: npt.DTypeLike = np.float32) -> DraftTensor:
        """Add a constant; equal small integer constants become one tensor."""
        array = np.ascontiguousarray(np.asarray(values, dtype=dtype))
        # ascontiguousarray gives scalars a dimension; the file knows rank 0.
        array = array.reshape(np.shape(values))
        if array.dtype.kind == "i" and array.nbytes <= SHARED_CONSTANT_BYTES:
            key = (array.dtype.str, array.shape, array.tobytes())
            if key not in self._shared:
                self._shared[key] = self._add(name, array.shape, dtype, constant=array)
            return self._shared[key]
        return self._add(name, array.shape, dtype, constant=array)

    def emit(
        self,
        op: str,
        inputs: Sequence[DraftTensor | None],
        name: str,
        shape: Sequence[int],
        *,
        options: Options | None = None,
        version: int = 1,
        dtype: npt.DTypeLike = np.float32,
        evaluate: Callable[..., Array] | None = None,
        result: Array | None = None,
    ) -> DraftTensor:
        """Add an operator with one output and return that output.

        Parameters
        ----------
        op, inputs, options, version
            See ``DraftOperator``.
        name, shape, dtype
            Of the output.
        evaluate
            Works the output out from the values of the inputs that are present.  Called only when
            the builder is sampled and all these values are known.
        result
            The output for the sample frames where the caller has it already.
        """
        sample = result
        values = [tensor.values for tensor in inputs if tensor is not None] if self.sampled else [None]
        if evaluate is not None and all(value is not None for value in values):
            sample = evaluate(*values)
        if sample is not None and sample.shape[1:] != tuple(shape)[1:]:
            raise ValueError(f"{self.full_name(name)}: inferred {tuple(shape)}, worked out {sample.shape}")
        output = self._add(name, shape, dtype, sample=sample)
        indices = tuple(None if tensor is None else tensor.index for tensor in inputs)
        self._operators.append(DraftOperator(op, indices, (output.index,), options, version))
        return output

    def finish(self, outputs: Sequence[DraftTensor]) -> Draft:
        """Return the drawing with these outputs."""
        for tensor in outputs:
            self._tensors[tensor.index] = tensor
        return Draft(
            name=self.name,
            description=self.description,
            tensors=tuple(self._tensors),
            operators=tuple(self._operators),
            inputs=tuple(self._inputs),
            outputs=tuple(tensor.index for tensor in outputs),
        )

    def _add(
        self,
        name: str,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        *,
        constant: Array | None = None,
        sample: Array | None = None,
        variable: bool = False,
    ) -> DraftTensor:
        full = self.full_name(name)
        if full in self._names:
            raise ValueError(f"two tensors are named {full}")
        if any(size < 1 for size in shape):
            raise ValueError(f"{full}: shape {tuple(shape)} has an empty dimension")
        self._names.add(full)
        tensor = DraftTensor(
            len(self._tensors), full, tuple(shape), np.dtype(dtype), constant, sample, variable=variable
        )
        if sample is not None and tensor.dtype.kind == "f":
            tensor = replace(tensor, limits=(float(sample.min()), float(sample.max())))
        # Only who draws holds the sample, so it goes when nothing more is drawn from this tensor.
        self._tensors.append(replace(tensor, sample=None))
        return tensor
