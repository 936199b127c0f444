"""From the bytes of a .tflite file to ``records.Model``, every step checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dse.errors import ModelError
from dse.flatbuffer.checks import check_model
from dse.flatbuffer.records import (
    Buffer,
    Data,
    Metadata,
    Model,
    Operator,
    OperatorCode,
    Options,
    Quantization,
    SignatureDef,
    SubGraph,
    Tensor,
    TensorMap,
)
from dse.flatbuffer.tables import UNKNOWN_PREFIX, TableReader

IDENTIFIER = b"TFL3"
# Offsets 0 and 1 mean "inside the flatbuffer" (1 is the writers' placeholder).
_FIRST_REAL_OFFSET = 2
_MAX_SHARED_BYTES = 64 << 20

OpenGroup = Callable[[str], memoryview]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A model and what is unusual about its file."""

    model: Model
    warnings: tuple[str, ...]


def decode(data: Data, source: str = "model", open_group: OpenGroup | None = None) -> Decoded:
    """Read a model from bytes; large data stays a view into them.

    Parameters
    ----------
    data
        The whole file, including whatever follows the flatbuffer.
    source
        Name for messages.
    open_group
        Opens a file of weights beside the model by its name (external buffer groups).

    Raises
    ------
    ModelError
        The bytes are damaged or inconsistent; the message says where.
    """
    view = memoryview(data).toreadonly()
    reader = TableReader(view, source)
    root = reader.read_root("Model", IDENTIFIER)
    model = _Builder(root, view, source, open_group).build()
    warnings = [f"{name} is newer than the schema known here: read, but not cut" for name in reader.unknown]
    warnings += check_model(model, source)
    return Decoded(model, tuple(warnings))


class _Builder:
    def __init__(self, root: Options, data: memoryview, source: str, open_group: OpenGroup | None) -> None:
        self._root = root
        self._data = data
        self._source = source
        self._open_group = open_group
        # Two buffers may share their bytes, but a small file must not become a large model.
        self._left = 2 * len(data) + _MAX_SHARED_BYTES
        self._buffers = [self._buffer(index, table) for index, table in enumerate(root.get("buffers", ()))]
        self._external: dict[int, int] = {}

    def build(self) -> Model:
        root = self._root
        self._open_external()
        return Model(
            subgraphs=tuple(self._subgraph(i, table) for i, table in enumerate(root.get("subgraphs", ()))),
            operator_codes=tuple(_operator_code(table) for table in root.get("operator_codes", ())),
            buffers=tuple(self._buffers),
            description=root.get("description", None),
            version=root.get("version"),
            metadata=tuple(
                Metadata(table.get("name", None), table.get("buffer")) for table in root.get("metadata", ())
            ),
            signature_defs=tuple(_signature(table) for table in root.get("signature_defs", ())),
            unknown=_unknown(root),
        )

    def _slice(self, data: memoryview, offset: int, size: int, where: str) -> memoryview:
        if offset + size > len(data):
            raise ModelError(
                f"{self._source}: {where}: bytes {offset} to {offset + size} lie beyond the end, "
                f"there are {len(data)} bytes (is the file cut short?)"
            )
        self._left -= size
        if data is self._data and self._left < 0:
            raise ModelError(
                f"{self._source}: {where}: the buffers overlap and claim far more than the file has"
            )
        return data[offset : offset + size]

    def _buffer(self, index: int, table: Options) -> Buffer:
        offset, size = table.get("offset"), table.get("size")
        if offset >= _FIRST_REAL_OFFSET:
            return Buffer(self._slice(self._data, offset, size, f"buffers[{index}]"), external=True)
        return Buffer(table.get("data", None), external=False, unknown=_unknown(table))

    def _open_external(self) -> None:
        groups = self._root.get("external_buffer_groups", ())
        for index, table in enumerate(self._root.get("external_buffers", ())):
            where = f"external_buffers[{index}]"
            group = table.get("group")
            if group >= len(groups):
                raise ModelError(f"{self._source}: {where}: group {group} of {len(groups)}")
            if table.get("packing", ""):
                raise ModelError(
                    f"{self._source}: {where}: packing {table.get('packing')!r} is not known; "
                    "convert the model with its weights inside"
                )
            name = groups[group].get("name", "")
            if self._open_group is None:
                raise ModelError(f"{self._source}: {where}: its weights are in another file ({name!r})")
            data = self._open_group(name)
            view = self._slice(data, table.get("offset"), table.get("length"), f"{where} in {name!r}")
            if table.get("id") in self._external:
                raise ModelError(f"{self._source}: {where}: id {table.get('id')} is there twice")
            self._external[table.get("id")] = len(self._buffers)
            self._buffers.append(Buffer(view, external=True))

    def _subgraph(self, index: int, table: Options) -> SubGraph:
        where = f"subgraphs[{index}]"
        return SubGraph(
            tensors=tuple(
                self._tensor(f"{where}.tensors[{i}]", tensor)
                for i, tensor in enumerate(table.get("tensors", ()))
            ),
            inputs=_tuple(table.get("inputs", ())),
            outputs=_tuple(table.get("outputs", ())),
            operators=tuple(
                self._operator(f"{where}.operators[{i}]", operator)
                for i, operator in enumerate(table.get("operators", ()))
            ),
            name=table.get("name", None),
            debug_metadata_index=table.get("debug_metadata_index", -1),
            unknown=_unknown(table),
        )

    def _tensor(self, where: str, table: Options) -> Tensor:
        get = table.get
        buffer = get("buffer")
        external = get("external_buffer")
        if external:
            if external not in self._external:
                raise ModelError(f"{self._source}: {where}: external buffer {external} does not exist")
            buffer = self._external[external]
        quantization = get("quantization", None)
        return Tensor(
            shape=_optional_tuple(get("shape", None)),
            type=get("type"),
            buffer=buffer,
            name=get("name", None),
            quantization=None if quantization is None else _quantization(quantization),
            is_variable=get("is_variable", False),
            sparsity=get("sparsity", None),
            shape_signature=_optional_tuple(get("shape_signature", None)),
            has_rank=get("has_rank", False),
            variant_tensors=get("variant_tensors", None),
            unknown=_unknown(table),
        )

    def _operator(self, where: str, table: Options) -> Operator:
        get = table.get
        custom, external = get("custom_options", None), False
        if get("large_custom_options_offset") >= _FIRST_REAL_OFFSET:
            offset, size = get("large_custom_options_offset"), get("large_custom_options_size")
            custom, external = self._slice(self._data, offset, size, f"{where}.large_custom_options"), True
        return Operator(
            opcode_index=get("opcode_index"),
            inputs=_tuple(get("inputs", ())),
            outputs=_tuple(get("outputs", ())),
            builtin_options=get("builtin_options", None),
            builtin_options_2=get("builtin_options_2", None),
            custom_options=custom,
            custom_options_external=external,
            custom_options_format=get("custom_options_format"),
            mutating_variable_inputs=get("mutating_variable_inputs", None),
            intermediates=_optional_tuple(get("intermediates", None)),
            debug_metadata_index=get("debug_metadata_index", -1),
            unknown=_unknown(table),
        )


def _operator_code(table: Options) -> OperatorCode:
    # Files from before 2020 have only the old field, whose 127 means "see the new one".
    return OperatorCode(
        builtin_code=max(table.get("deprecated_builtin_code"), table.get("builtin_code")),
        custom_code=table.get("custom_code", None),
        version=table.get("version", 1),
        unknown=_unknown(table),
    )


def _quantization(table: Options) -> Quantization:
    get = table.get
    return Quantization(
        min=get("min", None),
        max=get("max", None),
        scale=get("scale", None),
        zero_point=get("zero_point", None),
        details=get("details", None),
        quantized_dimension=get("quantized_dimension"),
        unknown=_unknown(table),
    )


def _signature(table: Options) -> SignatureDef:
    return SignatureDef(
        inputs=_tensor_maps(table.get("inputs", ())),
        outputs=_tensor_maps(table.get("outputs", ())),
        signature_key=table.get("signature_key", ""),
        subgraph_index=table.get("subgraph_index"),
    )


def _tensor_maps(tables: tuple[Options, ...]) -> tuple[TensorMap, ...]:
    return tuple(TensorMap(table.get("name", ""), table.get("tensor_index")) for table in tables)


def _tuple(values: Any) -> tuple[int, ...]:
    return tuple(values)


def _optional_tuple(values: Any) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _unknown(table: Options) -> bool:
    return any(name.startswith(UNKNOWN_PREFIX) for name in table.fields)
