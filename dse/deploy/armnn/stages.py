"""Stage files as Arm NN's parser wants them."""

from __future__ import annotations

from dataclasses import replace

from dse.flatbuffer.encode import encode
from dse.flatbuffer.folding import fold_constants
from dse.flatbuffer.operators import operator_name
from dse.flatbuffer.reader import model_from_bytes
from dse.flatbuffer.records import Operator


def acceptable(data: bytes) -> bytes:
    """Return a stage that the parser takes: constants worked out, a left-out bias not written as -1.

    The model computes the same in LiteRT.
    """
    model = fold_constants(model_from_bytes(data).model)
    main = model.subgraphs[0]
    operators = tuple(
        _without_trailing_gaps(operator) if operator_name(model, operator) == "FULLY_CONNECTED" else operator
        for operator in main.operators
    )
    return bytes(encode(replace(model, subgraphs=(replace(main, operators=operators), *model.subgraphs[1:]))))


def _without_trailing_gaps(operator: Operator) -> Operator:
    inputs = operator.inputs
    while inputs and inputs[-1] == -1:
        inputs = inputs[:-1]
    return replace(operator, inputs=inputs)
