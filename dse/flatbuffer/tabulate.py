"""From ``records`` to tables of the schema: the opposite of ``decode``."""

from __future__ import annotations

from typing import Any

from dse.errors import ModelError
from dse.flatbuffer.records import (
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

# Operators from this number on are only in the new field; the old one then says "look there".
_PLACEHOLDER_CODE = 127


def model_tables(model: Model) -> Options:
    """Return the tables of a model; fields at their default are left out.

    Raises
    ------
    ModelError
        A table had fields when it was read that the schema known here does not have.
    """
    fields: dict[str, Any] = {
        "version": model.version,
        "operator_codes": tuple(_operator_code(code) for code in model.operator_codes),
        "subgraphs": tuple(_subgraph(subgraph) for subgraph in model.subgraphs),
        "buffers": tuple(
            Options("Buffer", {} if buffer.data is None else {"data": _known(buffer, "buffer").data})
            for buffer in model.buffers
        )
        or (Options("Buffer", {}),),
    }
    if model.description is not None:
        fields["description"] = model.description
    if model.metadata:
        fields["metadata"] = tuple(
            Options("Metadata", _present(name=entry.name, buffer=entry.buffer)) for entry in model.metadata
        )
    if model.signature_defs:
        fields["signature_defs"] = tuple(_signature(signature) for signature in model.signature_defs)
    _known(model, "model")
    return Options("Model", fields)


def _known(record: Any, what: str) -> Any:
    if record.unknown:
        raise ModelError(
            f"a {what} has fields that are newer than the schema known here: it can not be written"
        )
    return record


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _unless(value: Any, default: Any) -> Any:
    return None if value == default else value


def _operator_code(code: OperatorCode) -> Options:
    _known(code, "operator code")
    return Options(
        "OperatorCode",
        _present(
            deprecated_builtin_code=min(code.builtin_code, _PLACEHOLDER_CODE),
            custom_code=code.custom_code,
            version=code.version,
            builtin_code=code.builtin_code,
        ),
    )


def _subgraph(subgraph: SubGraph) -> Options:
    _known(subgraph, "subgraph")
    return Options(
        "SubGraph",
        _present(
            tensors=tuple(_tensor(tensor) for tensor in subgraph.tensors),
            inputs=subgraph.inputs,
            outputs=subgraph.outputs,
            operators=tuple(_operator(operator) for operator in subgraph.operators),
            name=subgraph.name,
            debug_metadata_index=_unless(subgraph.debug_metadata_index, -1),
        ),
    )


def _tensor(tensor: Tensor) -> Options:
    _known(tensor, "tensor")
    quantization = tensor.quantization
    return Options(
        "Tensor",
        _present(
            shape=tensor.shape,
            type=_unless(tensor.type, 0),
            buffer=_unless(tensor.buffer, 0),
            name=tensor.name,
            quantization=None if quantization is None else _quantization(quantization),
            is_variable=_unless(tensor.is_variable, False),
            sparsity=tensor.sparsity,
            shape_signature=tensor.shape_signature,
            has_rank=_unless(tensor.has_rank, False),
            variant_tensors=tensor.variant_tensors,
        ),
    )


def _quantization(quantization: Quantization) -> Options:
    _known(quantization, "quantization")
    return Options(
        "QuantizationParameters",
        _present(
            min=quantization.min,
            max=quantization.max,
            scale=quantization.scale,
            zero_point=quantization.zero_point,
            details=quantization.details,
            quantized_dimension=_unless(quantization.quantized_dimension, 0),
        ),
    )


def _operator(operator: Operator) -> Options:
    _known(operator, "operator")
    return Options(
        "Operator",
        _present(
            opcode_index=_unless(operator.opcode_index, 0),
            inputs=operator.inputs,
            outputs=operator.outputs,
            builtin_options=operator.builtin_options,
            builtin_options_2=operator.builtin_options_2,
            custom_options=operator.custom_options,
            custom_options_format=_unless(operator.custom_options_format, 0),
            mutating_variable_inputs=operator.mutating_variable_inputs,
            intermediates=operator.intermediates,
            debug_metadata_index=_unless(operator.debug_metadata_index, -1),
        ),
    )


def _signature(signature: SignatureDef) -> Options:
    return Options(
        "SignatureDef",
        _present(
            inputs=_tensor_maps(signature.inputs),
            outputs=_tensor_maps(signature.outputs),
            signature_key=signature.signature_key,
            subgraph_index=signature.subgraph_index,
        ),
    )


def _tensor_maps(maps: tuple[TensorMap, ...]) -> tuple[Options, ...]:
    return tuple(
        Options("TensorMap", {"name": entry.name, "tensor_index": entry.tensor_index}) for entry in maps
    )
