"""Is a decoded model consistent?  Everything that later parts rely on is checked here, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NoReturn

from dse.errors import ModelError
from dse.flatbuffer.operators import CONTROL_FLOW, clean, operator_name, operator_subgraphs
from dse.flatbuffer.records import Model, Operator, Options, SubGraph, Tensor
from dse.flatbuffer.schema import builtin, enum_name
from dse.flatbuffer.sizes import dense_bytes, dtype_name

SUPPORTED_VERSION = 3
_MAX_TENSOR_BYTES = 1 << 48
_MAX_WARNINGS = 20
_MAX_NESTING = 64
_MAX_RANK = 255


def check_model(model: Model, source: str) -> list[str]:
    """Check a model and return what is unusual but usable.

    Raises
    ------
    ModelError
        An index leads nowhere, a tensor is made twice or used before it is made, a constant is
        smaller than its shape, subgraphs call each other in a circle, and so on.
    """
    checker = _Checker(model, source)
    checker.run()
    return checker.warnings()


def used_before_made(subgraph: SubGraph, model: Model) -> Iterator[tuple[int, int]]:
    """Yield (operator, tensor) for inputs that nothing has made when the operator runs.

    Graph inputs, constants, variable tensors and tensors without elements count as made.
    """
    made = set(subgraph.inputs)
    for number, operator in enumerate(subgraph.operators):
        for index in operator.inputs:
            if index >= 0 and index not in made and not is_given(model, subgraph.tensors[index]):
                yield number, index
        made.update(operator.outputs)


def is_given(model: Model, tensor: Tensor) -> bool:
    """Whether a tensor has its value (or its memory) without any operator: constant or variable."""
    return tensor.is_variable or is_constant(model, tensor)


def is_constant(model: Model, tensor: Tensor) -> bool:
    """Whether a tensor's value is in the file; a tensor without elements has nothing to store."""
    data = model.buffers[tensor.buffer].data
    return (data is not None and len(data) > 0 and not tensor.is_variable) or (
        tensor.shape is not None and 0 in tensor.shape
    )


class _Checker:
    def __init__(self, model: Model, source: str) -> None:
        self._model = model
        self._source = source
        self._warnings: Counter[str] = Counter()

    def warnings(self) -> list[str]:
        found = [text if n == 1 else f"{text} ({n} times)" for text, n in self._warnings.items()]
        left_out = len(found) - _MAX_WARNINGS
        return found[:_MAX_WARNINGS] + ([f"and {left_out} other kinds of warning"] if left_out > 0 else [])

    def run(self) -> None:
        model = self._model
        if model.version != SUPPORTED_VERSION:
            self._fail(f"schema version must be {SUPPORTED_VERSION}, got {model.version}")
        if not model.subgraphs:
            self._fail("there is no subgraph, so nothing to run")
        if model.buffers and model.buffers[0].data:
            self._warn("buffer 0 should be empty and is not")
        for number, code in enumerate(model.operator_codes):
            where = f"operator_codes[{number}]"
            if code.builtin_code < 0:
                self._fail(f"{where}: operator number {code.builtin_code} is negative")
            if code.builtin_code == builtin("CUSTOM") and not code.custom_code:
                self._fail(f"{where}: a custom operator needs a name (custom_code)")
            if enum_name("BuiltinOperator", code.builtin_code) is None:
                self._warn(f"operator number {code.builtin_code} is newer than the schema known here")
        for number, subgraph in enumerate(model.subgraphs):
            self._subgraph(subgraph, "main subgraph" if number == 0 else f"subgraph {number}")
        self._recursion()
        self._signatures()
        for number, entry in enumerate(model.metadata):
            self._index(entry.buffer, len(model.buffers), f"metadata[{number}]", "buffer")

    def _fail(self, why: str) -> NoReturn:
        raise ModelError(f"{self._source}: inconsistent model: {why}")

    def _warn(self, text: str) -> None:
        self._warnings[text] += 1

    def _index(self, index: int, n: int, where: str, what: str, *, optional: bool = False) -> None:
        if not ((optional and index == -1) or 0 <= index < n):
            self._fail(f"{where} refers to {what} {index}, there are {n}")

    def _subgraph(self, subgraph: SubGraph, where: str) -> None:
        n = len(subgraph.tensors)
        for index, tensor in enumerate(subgraph.tensors):
            self._tensor(tensor, n, f"{where}, tensor {index} ({clean(tensor.name or '')!r})")
        for name, indices in (("inputs", subgraph.inputs), ("outputs", subgraph.outputs)):
            for position, index in enumerate(indices):
                self._index(index, n, f"{where}, {name}[{position}]", "tensor")
        producer: dict[int, int] = {}
        inputs = set(subgraph.inputs)
        for number, operator in enumerate(subgraph.operators):
            name = self._operator(operator, n, f"{where}, operator {number}")
            for index in operator.outputs:
                if index < 0:
                    continue
                if index in producer:
                    self._fail(
                        f"{where}: tensor {index} is made by operator {producer[index]} "
                        f"and again by {number} ({name})"
                    )
                if index in inputs:
                    self._fail(
                        f"{where}: tensor {index} is an input and also made by operator {number} ({name})"
                    )
                data = self._model.buffers[subgraph.tensors[index].buffer].data
                if data:
                    self._fail(
                        f"{where}: operator {number} ({name}) writes tensor {index}, which is a constant"
                    )
                producer[index] = number
        for number, index in used_before_made(subgraph, self._model):
            if index in producer:
                self._fail(
                    f"{where}: operator {number} uses tensor {index}, "
                    f"which only operator {producer[index]} makes: "
                    "operators must be stored in execution order without cycles"
                )
            self._warn(f"{where}: a tensor is used that nothing makes; its content is undefined")

    def _tensor(self, tensor: Tensor, n_tensors: int, where: str) -> None:
        self._index(tensor.buffer, len(self._model.buffers), where, "buffer")
        if enum_name("TensorType", tensor.type) is None:
            self._warn(f"tensor type {tensor.type} is newer than the schema known here")
        for shape in (tensor.shape, tensor.shape_signature):
            if shape and min(shape) < -1:
                self._fail(f"{where}: dimension {min(shape)} in shape {list(shape)}")
        if len(tensor.shape or ()) > _MAX_RANK:
            self._fail(f"{where}: rank {len(tensor.shape or ())}, at most {_MAX_RANK} is sensible")
        shape = tuple(max(dim, 1) if dim else 0 for dim in tensor.shape or ())
        needed = dense_bytes(dtype_name(tensor.type), shape)
        if needed is not None and needed > _MAX_TENSOR_BYTES:
            self._fail(f"{where}: shape {list(shape)} needs {needed} bytes")
        data = self._model.buffers[tensor.buffer].data
        if tensor.sparsity is not None:
            self._sparsity(tensor.sparsity, len(shape), where)
        elif needed is not None and data and not tensor.is_variable:
            if len(data) < needed:
                self._fail(
                    f"{where}: {dtype_name(tensor.type)} {list(shape)} needs {needed} bytes, "
                    f"buffer {tensor.buffer} has {len(data)}"
                )
            if len(data) > needed:
                self._warn("a constant's buffer is larger than its shape needs")
        self._quantization(tensor, n_tensors, where)

    def _quantization(self, tensor: Tensor, n_tensors: int, where: str) -> None:
        quantization = tensor.quantization
        if quantization is None:
            return
        n_scales = len(quantization.scale or ())
        if n_scales > 1:
            axis, shape = quantization.quantized_dimension, tensor.shape or ()
            if not 0 <= axis < len(shape) or shape[axis] != n_scales:
                self._warn("a tensor has another number of scales than its quantised axis is long")
        if quantization.zero_point and len(quantization.zero_point) not in (1, n_scales):
            self._warn("a tensor has another number of zero points than of scales")
        details = quantization.details
        if details is not None and details.table in {"BlockwiseQuantization", "MultiAxisQuantization"}:
            # 0 can be "absent" for zero points, and both are tensor indices of the same subgraph.
            for name in ("scales", "zero_points"):
                self._index(
                    details.get(name), n_tensors, f"{where}, quantization.{name}", "tensor", optional=True
                )

    def _sparsity(self, sparsity: Options, rank: int, where: str) -> None:
        order: Sequence[int] = sparsity.get("traversal_order", ())
        blocks: Sequence[int] = sparsity.get("block_map", ())
        dims: Sequence[Options] = sparsity.get("dim_metadata", ())
        if len(order) != len(dims) or len(order) != rank + len(blocks):
            self._fail(
                f"{where}: sparsity has {len(order)} traversal entries and {len(dims)} dimensions "
                f"for rank {rank} with {len(blocks)} blocks"
            )
        if sorted(order) != list(range(len(order))) or any(not 0 <= block < rank for block in blocks):
            self._fail(f"{where}: sparsity's traversal order or block map is not a valid set of axes")
        for number, dim in enumerate(dims):
            if dim.get("format") == 1 and not {"array_segments", "array_indices"} <= set(dim.fields):
                self._fail(f"{where}: sparse dimension {number} lacks its segments or indices")

    def _operator(self, operator: Operator, n_tensors: int, where: str) -> str:
        model = self._model
        self._index(operator.opcode_index, len(model.operator_codes), where, "operator code")
        name = operator_name(model, operator)
        where = f"{where} ({name})"
        for what, indices in (
            ("inputs", operator.inputs),
            ("outputs", operator.outputs),
            ("intermediates", operator.intermediates or ()),
        ):
            for position, index in enumerate(indices):
                self._index(index, n_tensors, f"{where}, {what}[{position}]", "tensor", optional=True)
        subgraphs = operator_subgraphs(operator)
        for index in subgraphs:
            self._index(index, len(model.subgraphs), where, "subgraph")
        if name in CONTROL_FLOW and not subgraphs:
            self._fail(f"{where}: its options, which name the subgraph to run, are missing")
        return name

    def _recursion(self) -> None:
        """Depth-first search for a circle among the subgraphs; linear, without recursion."""
        calls = [
            sorted({index for operator in subgraph.operators for index in operator_subgraphs(operator)})
            for subgraph in self._model.subgraphs
        ]
        done: set[int] = set()
        for start in range(len(calls)):
            stack = [(start, iter(calls[start]))] if start not in done else []
            active = {start}
            while stack:
                node, successors = stack[-1]
                following = next(successors, None)
                if following is None:
                    stack.pop()
                    active.discard(node)
                    done.add(node)
                elif following in active:
                    self._fail(f"subgraph {following} runs itself through subgraph {node}")
                elif len(stack) > _MAX_NESTING:
                    self._fail(f"subgraphs call each other more than {_MAX_NESTING} deep")
                elif following not in done:
                    active.add(following)
                    stack.append((following, iter(calls[following])))

    def _signatures(self) -> None:
        keys: set[str] = set()
        for signature in self._model.signature_defs:
            where = f"signature {clean(signature.signature_key)!r}"
            if signature.signature_key in keys:
                self._warn(f"{where} is there twice; the first is used")
            keys.add(signature.signature_key)
            self._index(signature.subgraph_index, len(self._model.subgraphs), where, "subgraph")
            subgraph = self._model.subgraphs[signature.subgraph_index]
            for what, maps, allowed in (
                ("input", signature.inputs, set(subgraph.inputs)),
                ("output", signature.outputs, set(subgraph.outputs)),
            ):
                for entry in maps:
                    self._index(
                        entry.tensor_index,
                        len(subgraph.tensors),
                        f"{where}, {what} {clean(entry.name)!r}",
                        "tensor",
                    )
                    if entry.tensor_index not in allowed:
                        self._warn(f"{where} names a tensor that is no {what} of its subgraph")
