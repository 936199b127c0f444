"""C++ for the graph API of the Arm Compute Library, line by line: values, constants, layers.

Everything is held with channels last, ``DataLayout::NHWC``.  The library names the fastest dimension
first, so the shape of a tensor is that of the file backwards, and its values lie in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dse.deploy.plan_text import escape
from dse.flatbuffer.constants import Array, Constants
from dse.flatbuffer.layers import resolved_shape
from dse.flatbuffer.reader import ModelFile
from dse.flatbuffer.schema import enum_name
from dse.graph import Layer, LayerGraph

MAX_RANK = 4

Shape = tuple[int, ...]


class UnsupportedError(Exception):
    """A layer can not be expressed; the text says what about it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with what its translation needs to know.

    Parameters
    ----------
    layer
        Its layer.
    inputs, outputs
        Tensor indices; left-out optional inputs are -1.
    shapes
        Of the inputs; ``()`` for left-out ones.
    out_shapes
        Of the outputs.
    options
        Fields of its options table that are present.
    constants
        Values of the inputs that are constants, else None.
    """

    layer: Layer
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    shapes: tuple[Shape, ...]
    out_shapes: tuple[Shape, ...]
    options: dict[str, Any]
    constants: tuple[Array | None, ...]

    def has(self, position: int) -> bool:
        """Whether an input is there."""
        return position < len(self.inputs) and self.inputs[position] >= 0

    def constant(self, position: int, what: str) -> Array:
        """Return an input that has to be a constant.

        Raises
        ------
        UnsupportedError
            It is computed at run time, or stored in a form that can not be worked out.
        """
        value = self.constants[position] if self.has(position) else None
        if value is None:
            raise UnsupportedError(f"its {what} would have to be constant")
        return value

    def reals(self, position: int, what: str) -> npt.NDArray[np.float32]:
        """Return a constant input of 32-bit floats.

        Raises
        ------
        UnsupportedError
            It is no constant, or of another type.
        """
        value = self.constant(position, what)
        if value.dtype != np.float32:
            raise UnsupportedError(f"its {what} are {value.dtype.name}, only float32 is supported")
        return value

    @property
    def activation(self) -> str:
        """Name of the fused activation, ``NONE`` when there is none."""
        number = int(self.options.get("fused_activation_function", 0))
        return enum_name("ActivationFunctionType", number) or f"number {number}"


def read_operation(file: ModelFile, layer: Layer, constants: Constants) -> Operation:
    """Gather what a translation needs of a layer's operator."""
    main = file.model.subgraphs[0]
    operator = main.operators[layer.operators[-1]]
    options = operator.builtin_options or operator.builtin_options_2
    return Operation(
        layer=layer,
        inputs=operator.inputs,
        outputs=operator.outputs,
        shapes=tuple(resolved_shape(main.tensors[i]) if i >= 0 else () for i in operator.inputs),
        out_shapes=tuple(resolved_shape(main.tensors[i]) for i in operator.outputs if i >= 0),
        options={} if options is None else options.fields,
        constants=tuple(constants.value(i) if i >= 0 else None for i in operator.inputs),
    )


@dataclass(slots=True)
class Writer:
    """Collects the lines of one stage and the constants that they name.

    Parameters
    ----------
    graph
        The whole model.
    lines
        C++ statements.
    arrays
        Constants by file name.
    values
        Variable that holds a tensor, by tensor index.
    """

    graph: LayerGraph
    lines: list[str] = field(default_factory=list)
    arrays: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    _layer: Layer | None = None
    _n_variables: int = 0
    _n_arrays: int = 0

    def input(self, index: int) -> None:
        """Take in a tensor from outside."""
        self.values[index] = self._fresh()
        dims = shape(self.graph.tensors[index].shape)
        self.lines.append(f"SubStream {self.values[index]} = net.input({index}, {dims});")

    def output(self, index: int, taken: set[str]) -> None:
        """Give out a tensor; ``taken`` are values that the library has bound to the outside already."""
        value = self.values[index]
        if value in taken:
            # A value can be bound once only, and a layer that changes nothing is left out before.
            value = self.chain(value, "ActivationLayer(ActivationLayerInfo(Activation::LINEAR, 1.0f, 0.0f))")
        taken.add(value)
        self.lines.append(f"net.output({index}, {value});")

    def begin(self, layer: Layer) -> None:
        """Begin a layer: what follows belongs to it."""
        self._layer, self._n_arrays = layer, 0
        # In quotes: a name that ends with a backslash would make the next line a comment, too.
        self.lines.append(f"// {layer.index} {layer.op} '{escape(layer.name)}'")

    def store(self, values: Array, what: str) -> str:
        """Keep a constant of the current layer; return the name of its file."""
        index = self._layer.index if self._layer is not None else 0
        suffix = f"_{self._n_arrays}" if f"layer{index}_{what}.npy" in self.arrays else ""
        self._n_arrays += 1
        name = f"layer{index}_{what}{suffix}.npy"
        self.arrays[name] = np.ascontiguousarray(values, np.float32)
        return name

    def constant(self, values: Array | None, what: str) -> str:
        """Return the expression of a layer's constant; of none when there is none."""
        return "nullptr" if values is None else f'net.constant("{self.store(values, what)}")'

    def chain(self, source: str, *layers: str) -> str:
        """Put layers behind a value; return the variable of the result."""
        if not layers:
            return source
        name = self._fresh()
        label = f"{self._layer.index} {self._layer.op}" if self._layer is not None else ""
        named = "\n        << ".join(f'{layer}.set_name("{label}")' for layer in layers)
        self.lines += [f"SubStream {name} = {source};", f"{name} << {named};"]
        return name

    def value(self, operation: Operation, position: int) -> str:
        """Return the variable of an input; constants become values of their own."""
        index = operation.inputs[position]
        if index in self.values:
            return self.values[index]
        values = operation.reals(position, "constant inputs")
        name = self._fresh()
        self.lines.append(
            f'SubStream {name} = net.value("{self.store(values, "input")}", {shape(values.shape)});'
        )
        return name

    def reshaped(self, source: str, old: Shape, new: Shape) -> str:
        """Return a value in another shape."""
        return source if old == new else self.chain(source, f"ReshapeLayer({shape(new)})")

    def _fresh(self) -> str:
        self._n_variables += 1
        return f"v{self._n_variables}"


def shape(dims: Sequence[int]) -> str:
    """Return the expression of a shape, fastest dimension first.

    Raises
    ------
    UnsupportedError
        There are more dimensions than the library's functions handle, or one is empty.
    """
    if len(dims) > MAX_RANK:
        raise UnsupportedError(f"a tensor has {len(dims)} dimensions, at most {MAX_RANK} are supported")
    if 0 in dims:
        raise UnsupportedError("a tensor is empty")
    return f"TensorShape({', '.join(f'{size}U' for size in reversed(dims or (1,)))})"


def number(value: float) -> str:
    """Return a float as C++ writes it, exactly."""
    text = repr(float(np.float32(value)))
    return f"{text}f" if text not in {"inf", "-inf", "nan"} else "0.0f"
