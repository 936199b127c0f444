"""What cutting a model gives: stages that are models of their own."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class StageTensor:
    """A tensor that goes into or comes out of a stage.

    Parameters
    ----------
    tensor
        Index in the main subgraph of the whole model: equal numbers are the same tensor.
    name
        Name in the stage's signature, unique over the whole model.
    dtype, shape, n_bytes
        As in ``dse.graph.Tensor``.
    """

    tensor: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage as a file.

    Parameters
    ----------
    name
        For file names and people.
    layers
        Layer indices of the whole model.
    inputs, outputs
        In the order of the stage's subgraph: what the model takes in and gives out first, in its
        own order, then other tensors in the order in which they are made.
    data
        The .tflite file.
    """

    name: str
    layers: tuple[int, ...]
    inputs: tuple[StageTensor, ...]
    outputs: tuple[StageTensor, ...]
    data: bytes | bytearray = field(repr=False)


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model cut into stages.

    Parameters
    ----------
    name
        Of the whole model.
    stages
        In the order asked for.
    inputs, outputs
        Of the whole model, in its own order.
    """

    name: str
    stages: tuple[StageModel, ...]
    inputs: tuple[StageTensor, ...]
    outputs: tuple[StageTensor, ...]
