"""The inputs and outputs of a model by name: of its signature, of its tensors, or by position."""

from __future__ import annotations

from typing import Literal

from dse.errors import CutError
from dse.flatbuffer.operators import clean
from dse.flatbuffer.records import Model, Tensor
from dse.flatbuffer.signatures import main_signatures

Side = Literal["inputs", "outputs"]


class NetworkPorts:
    """Finds the inputs and outputs of a network by the names that people know.

    Parameters
    ----------
    network
        Its name, for messages.
    model
        A checked model; its main subgraph is meant, and the first signature of that.

    Notes
    -----
    Positions alone would swap outputs: a signature may list them in another order than the subgraph.
    """

    def __init__(self, network: str, model: Model) -> None:
        main = model.subgraphs[0]
        self._network = network
        self._tensors = main.tensors
        self._indices: dict[Side, tuple[int, ...]] = {
            "inputs": tuple(dict.fromkeys(main.inputs)),
            "outputs": tuple(dict.fromkeys(main.outputs)),
        }
        signatures = main_signatures(model)
        self._named: dict[Side, dict[int, str]] = {"inputs": {}, "outputs": {}}
        if signatures:
            for entry in signatures[0].inputs:
                self._named["inputs"].setdefault(entry.tensor_index, clean(entry.name))
            for entry in signatures[0].outputs:
                self._named["outputs"].setdefault(entry.tensor_index, clean(entry.name))

    def record(self, side: Side, position: int) -> Tensor:
        """Return the tensor at a position."""
        return self._tensors[self._indices[side][position]]

    def name(self, side: Side, position: int) -> str:
        """Return the name at a position: of the signature, else of the tensor; unique on its side."""
        names = [self._name(side, index) for index in self._indices[side]]
        name = names[position]
        return name if names.count(name) == 1 else f"{name}#{position}"

    def find(self, side: Side, text: str, where: str) -> int:
        """Return the position of a tensor by name or position.

        Raises
        ------
        CutError
            There is none, or several fit; the message starts with ``where`` and lists what there is.
        """
        found = self._positions(side, text)
        if len(found) == 1:
            return found[0]
        raise CutError(f"{where}: {self._fault(found, text, side)}; it has {self._listed(side)}")

    def find_any(self, text: str, where: str) -> tuple[Side, int]:
        """Return side and position of an output, or else of an input.

        Raises
        ------
        CutError
            See ``find``.
        """
        outputs = self._positions("outputs", text)
        inputs = [] if outputs or text.isdigit() else self._positions("inputs", text)
        if len(outputs) == 1:
            return "outputs", outputs[0]
        if len(inputs) == 1 and not outputs:
            return "inputs", inputs[0]
        raise CutError(
            f"{where}: {self._fault(outputs or inputs, text, 'outputs')}; it has {self._listed('outputs')}"
        )

    def _name(self, side: Side, index: int) -> str:
        return self._named[side].get(index) or self._tensor_name(index)

    def _tensor_name(self, index: int) -> str:
        return clean(self._tensors[index].name or "") or f"tensor_{index}"

    def _positions(self, side: Side, text: str) -> list[int]:
        indices = self._indices[side]
        found = [
            place
            for place, index in enumerate(indices)
            if text in (self.name(side, place), self._name(side, index), self._tensor_name(index))
        ]
        if not found and text.isdigit() and int(text) < len(indices):
            return [int(text)]
        return found

    def _fault(self, found: list[int], text: str, side: Side) -> str:
        if found:
            positions = " or ".join(map(str, found))
            return f"{text!r} names {len(found)} {side} of {self._network!r}; give the position, {positions}"
        return f"network {self._network!r} has no {side[:-1]} {text!r}"

    def _listed(self, side: Side) -> str:
        names = [self.name(side, place) for place in range(len(self._indices[side]))]
        return f"{side} {', '.join(map(repr, names))}" if names else f"no {side}"
