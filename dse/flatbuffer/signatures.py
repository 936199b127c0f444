"""A model is worked on through its main subgraph; another signature can be made the main one."""

from __future__ import annotations

from dataclasses import replace

from dse.errors import CutError
from dse.flatbuffer.encode import encode
from dse.flatbuffer.operators import clean, renumber_subgraphs
from dse.flatbuffer.reader import ModelFile, model_from_bytes
from dse.flatbuffer.records import Model, Operator, SignatureDef


def main_signatures(model: Model) -> tuple[SignatureDef, ...]:
    """Return the signatures of the main subgraph."""
    return tuple(signature for signature in model.signature_defs if signature.subgraph_index == 0)


def needs_choice(model: Model) -> bool:
    """Whether signatures belong to different subgraphs, so that one has to be chosen."""
    return len({signature.subgraph_index for signature in model.signature_defs}) > 1


def choose_signature(file: ModelFile, key: str) -> ModelFile:
    """Return the model with a signature's subgraph as its main one.

    Parameters
    ----------
    file
        The model.
    key
        Name of the signature.

    Returns
    -------
    ModelFile
        ``file`` itself when it is so already; else a rewritten model in memory (``in_folder`` makes
        a file of it) with the subgraphs in another order and nothing else changed.

    Raises
    ------
    CutError
        There is no such signature; the message lists what there is.
    """
    found = [s for s in file.model.signature_defs if clean(s.signature_key) == key]
    if not found:
        known = ", ".join(repr(clean(s.signature_key)) for s in file.model.signature_defs) or "none"
        raise CutError(f"{file.path.name} has no signature {key!r}; it has {known}")
    index = found[0].subgraph_index
    if index == 0:
        return file
    return model_from_bytes(encode(with_main(file.model, index)), f"{file.name}_{key}")


def with_main(model: Model, subgraph_index: int) -> Model:
    """Return the model with a subgraph moved to the front; the others keep their order."""
    order = [subgraph_index, *(i for i in range(len(model.subgraphs)) if i != subgraph_index)]
    numbers = {old: new for new, old in enumerate(order)}

    def renumbered(operator: Operator) -> Operator:
        return replace(
            operator,
            builtin_options=renumber_subgraphs(operator.builtin_options, numbers),
            builtin_options_2=renumber_subgraphs(operator.builtin_options_2, numbers),
        )

    subgraphs = [
        replace(subgraph, operators=tuple(renumbered(operator) for operator in subgraph.operators))
        for subgraph in model.subgraphs
    ]
    return replace(
        model,
        subgraphs=tuple(subgraphs[old] for old in order),
        signature_defs=tuple(
            replace(signature, subgraph_index=numbers[signature.subgraph_index])
            for signature in model.signature_defs
        ),
    )
