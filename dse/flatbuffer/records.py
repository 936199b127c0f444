"""The content of a .tflite file as plain records: one dataclass per table of the schema.

Field names and meanings are those of the public TensorFlow Lite schema (schema.fbs); defaults are
the schema's.  ``decode`` builds these from bytes after checking them, ``encode`` writes them.
Large data is never copied: ``Buffer.data`` is a view into the file; numeric vectors longer than 4096
elements are typed views too, shorter ones tuples.  ``unknown`` marks a table with fields that the
schema known here does not have: it can be read, but not written without loss, so writing refuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Data = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Options:
    """A table whose fields we carry without interpreting all of them (operator options).

    ``fields`` holds the fields that are present, by schema name; nested tables are ``Options``
    again, vectors tuples (vectors of bytes: ``bytes``), strings ``str``.
    """

    table: str
    fields: dict[str, Any]

    def get(self, name: str, default: Any = 0) -> Any:
        """Return a field, or the default when it is absent."""
        return self.fields.get(name, default)


@dataclass(frozen=True, slots=True)
class Buffer:
    """Constant data: inside the flatbuffer (``data``), or outside (decode resolves it to ``data``).

    ``external`` remembers that it was stored outside.
    """

    data: Data | None = None
    external: bool = False
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class OperatorCode:
    """Which operator; ``builtin_code`` is already max(deprecated, new)."""

    builtin_code: int
    custom_code: str | None = None
    version: int = 1
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Quantization:
    """QuantizationParameters; ``details`` is a union (custom or blockwise quantisation)."""

    min: tuple[float, ...] | None = None
    max: tuple[float, ...] | None = None
    scale: tuple[float, ...] | None = None
    zero_point: tuple[int, ...] | None = None
    details: Options | None = None
    quantized_dimension: int = 0
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor; ``type`` is the schema's TensorType number."""

    shape: tuple[int, ...] | None = None
    type: int = 0
    buffer: int = 0
    name: str | None = None
    quantization: Quantization | None = None
    is_variable: bool = False
    sparsity: Options | None = None
    shape_signature: tuple[int, ...] | None = None
    has_rank: bool = False
    variant_tensors: tuple[Options, ...] | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator; its options are unions keyed by the table's name."""

    opcode_index: int
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    builtin_options: Options | None = None
    builtin_options_2: Options | None = None
    custom_options: Data | None = None
    custom_options_external: bool = False
    custom_options_format: int = 0
    mutating_variable_inputs: tuple[bool, ...] | None = None
    intermediates: tuple[int, ...] | None = None
    debug_metadata_index: int = -1
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class SubGraph:
    """Tensors, and operators in execution order."""

    tensors: tuple[Tensor, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    operators: tuple[Operator, ...] = ()
    name: str | None = None
    debug_metadata_index: int = -1
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Metadata:
    """A named buffer."""

    name: str | None
    buffer: int


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A name of a signature bound to a tensor index."""

    name: str
    tensor_index: int


@dataclass(frozen=True, slots=True)
class SignatureDef:
    """A named way to call a subgraph."""

    inputs: tuple[TensorMap, ...]
    outputs: tuple[TensorMap, ...]
    signature_key: str
    subgraph_index: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A whole file."""

    subgraphs: tuple[SubGraph, ...]
    operator_codes: tuple[OperatorCode, ...]
    buffers: tuple[Buffer, ...]
    description: str | None = None
    version: int = 3
    metadata: tuple[Metadata, ...] = ()
    signature_defs: tuple[SignatureDef, ...] = ()
    unknown: bool = False
