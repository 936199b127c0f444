"""Predicting layer costs from profiles that were made before: a regression per slot.

For every slot (core type and thread count) there are two steps.  A roofline is fitted to the
examples: for each operator and width of type, a cost that is linear in arithmetic and bytes,
with coefficients that are not negative and least *relative* residuals.  It extrapolates; what it
misses is learned by randomised trees [1]_ from operator, shapes and types.  How good that is, is
measured by leaving out one model at a time, since layers of one model resemble each other.  Needs
scikit-learn (``pip install 'tflite-dse[learned]'``).

References
----------
.. [1] P. Geurts, D. Ernst, L. Wehenkel, "Extremely randomized trees", Machine Learning 63, 2006.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dse.costs import Cost, CostTable
from dse.errors import InputError, MissingExtraError
from dse.graph import Layer, LayerGraph
from dse.platforms import Link, Slot
from dse.profiling.analytic import traffic_bytes

if TYPE_CHECKING:
    import numpy as np

FLOOR_NS = 500.0  # shorter costs can not be told apart from the clock
N_TREES = 100
FEWEST_MODELS = 3
FEWEST_FOR_A_LINE = 8
# The sum over a model is decided by its long layers, so they count more: by this power of their time.
WEIGHT_POWER = 0.6
_ONE = math.log1p(1.5)
NARROW = frozenset({"int8", "uint8"})
NUMBERS = (
    "macs",
    "element_ops",
    "traffic_bytes",
    "weight_bytes",
    "input_bytes",
    "output_bytes",
    "output_elements",
    "output_channels",
    "input_channels",
    "macs_per_output",
    "macs_per_byte",
    "output_positions",
    "input_positions",
    "kernel_height",
    "kernel_width",
    "input_per_output",
    "n_inputs",
)


@dataclass(frozen=True, slots=True)
class Example:
    """A layer, described by numbers, and what it cost.

    Parameters
    ----------
    model
        Name of its model: examples of one model are left out together.
    op, dtype
        Operator kind, and element type of its output.
    numbers
        In the order of ``NUMBERS``, as logarithms.
    cost_ns
        Measured.
    family
        Models that are variants of each other, and left out together; empty: a family of its own.
    """

    model: str
    op: str
    dtype: str
    numbers: tuple[float, ...]
    cost_ns: int
    family: str = ""


@dataclass(frozen=True, slots=True)
class Validation:
    """How far predictions are off for models that were not learned from.

    Parameters
    ----------
    layer_error
        Median relative error of a layer; layers below the floor count as the floor.
    model_error
        Median relative error of the sum over a model.
    n_layers, n_models
        Over how many.
    """

    layer_error: float
    model_error: float
    n_layers: int
    n_models: int


def numbers_of(graph: LayerGraph, layer: Layer) -> tuple[float, ...]:
    """Describe a layer by numbers, see ``NUMBERS``."""
    inputs = [graph.tensors[tensor] for tensor in layer.inputs]
    outputs = [graph.tensors[tensor] for tensor in layer.outputs]
    n_out = sum(math.prod(tensor.shape) for tensor in outputs)
    traffic = traffic_bytes(graph, layer)
    macs = layer.macs or 0
    largest_in = max((math.prod(tensor.shape) for tensor in inputs), default=0)
    in_channels = max((tensor.shape[-1] for tensor in inputs if tensor.shape), default=1)
    out_channels = max((tensor.shape[-1] for tensor in outputs if tensor.shape), default=1)
    kernels = [shape for tensor in layer.constants if len(shape := graph.tensors[tensor].shape) == 4]
    kernel = max(kernels, key=math.prod, default=(1, 1, 1, 1))
    raw = (
        macs,
        layer.element_ops or 0,
        traffic,
        layer.weight_bytes,
        sum(tensor.n_bytes for tensor in inputs),
        sum(tensor.n_bytes for tensor in outputs),
        n_out,
        out_channels,
        in_channels,
        macs / max(1, n_out),
        macs / max(1, traffic),
        n_out / max(1, out_channels),
        largest_in / max(1, in_channels),
        kernel[1],
        kernel[2],
        (largest_in / max(1, in_channels)) / max(1, n_out / max(1, out_channels)),
        len(inputs),
    )
    return tuple(math.log1p(value) for value in raw)


def examples_of(graph: LayerGraph, table: CostTable, slot: Slot, *, family: str = "") -> tuple[Example, ...]:
    """Return what a measured table teaches about a slot.

    Layers without a cost of their own (unsupported, or inside another layer's kernel) are left out;
    identical layers count once.
    """
    column = table.slots.index(slot)
    found: dict[str, Example] = {}
    for layer, row in zip(graph.layers, table.costs, strict=True):
        cost = row[column]
        if cost.median_ns is None or not cost.samples_ns:
            continue
        dtype = graph.tensors[layer.outputs[0]].dtype if layer.outputs else ""
        numbers = numbers_of(graph, layer)
        found.setdefault(layer.key, Example(graph.name, layer.op, dtype, numbers, cost.median_ns, family))
    return tuple(found.values())


class Predictor:
    """Learned costs on some slots.

    Parameters
    ----------
    examples
        By slot.
    links
        Of the platform that the examples are from.
    platform_name
        For people.

    Raises
    ------
    InputError
        A slot has no examples.
    MissingExtraError
        scikit-learn is not installed.
    """

    def __init__(
        self,
        examples: Mapping[Slot, Sequence[Example]],
        *,
        links: Sequence[Link] = (),
        platform_name: str = "learned",
    ) -> None:
        empty = [str(slot) for slot, known in examples.items() if not known]
        if empty or not examples:
            raise InputError(f"there are no measured layers to learn from ({', '.join(empty) or 'no slots'})")
        self.examples = {slot: tuple(known) for slot, known in examples.items()}
        self._links = tuple(links)
        self._platform_name = platform_name
        self._models = {slot: _Model(known) for slot, known in self.examples.items()}

    def predict(self, graph: LayerGraph) -> CostTable:
        """Predict a model on every learned slot.

        The conditions tell the validation error and what is outside of the range of the examples.
        """
        layers = [_unlabelled(graph, layer) for layer in graph.layers]
        columns = [model.predict(layers) for model in self._models.values()]
        return CostTable(
            model_hash="",
            model_name=graph.name,
            platform_name=self._platform_name,
            slots=tuple(self._models),
            costs=tuple(
                tuple(Cost(column[layer], source="learned") for column in columns)
                for layer in range(len(graph.layers))
            ),
            overhead_ns=tuple(0 for _ in self._models),
            whole=tuple(None for _ in self._models),
            links=self._links,
            conditions={
                "method": "learned",
                "outside_range": list(self.outside(graph)),
                "validation": {str(slot): _as_json(validate(known)) for slot, known in self.examples.items()},
            },
        )

    def outside(self, graph: LayerGraph) -> tuple[str, ...]:
        """Return the layers that are unlike everything that was learned from, and why."""
        known = next(iter(self.examples.values()))
        ops = {example.op for example in known}
        low = [min(e.numbers[i] for e in known) for i in range(len(NUMBERS))]
        high = [max(e.numbers[i] for e in known) for i in range(len(NUMBERS))]
        found = []
        for layer in graph.layers:
            numbers = numbers_of(graph, layer)
            wide = [n for n, a, x, b in zip(NUMBERS, low, numbers, high, strict=True) if not a <= x <= b]
            if layer.op not in ops:
                found.append(f"{layer.name}: no example of {layer.op}")
            elif wide:
                found.append(f"{layer.name}: {', '.join(wide)} outside of the examples")
        return tuple(found)


def validate(examples: Sequence[Example], helpers: Sequence[Example] = ()) -> Validation | None:
    """Predict each model from the others; None with too few models.

    Parameters
    ----------
    examples
        Models of one family are left out together.
    helpers
        Learned from always, never predicted: layers drawn by chance, say.

    Raises
    ------
    MissingExtraError
        scikit-learn is not installed.
    """
    families: dict[str, list[Example]] = {}
    for example in examples:
        families.setdefault(example.family or example.model, []).append(example)
    if len(families) < FEWEST_MODELS:
        return None
    layer_errors: list[float] = []
    spent: dict[str, tuple[int, int]] = {}
    for family, asked in families.items():
        known = [*helpers, *(e for other, members in families.items() if other != family for e in members)]
        for example, value in zip(asked, _Model(known).predict(asked), strict=True):
            true = max(FLOOR_NS, example.cost_ns)
            layer_errors.append(abs(max(FLOOR_NS, value) / true - 1))
            predicted, measured = spent.get(example.model, (0, 0))
            spent[example.model] = (predicted + value, measured + example.cost_ns)
    model_errors = [abs(predicted / max(1, measured) - 1) for predicted, measured in spent.values()]
    return Validation(
        statistics.median(layer_errors), statistics.median(model_errors), len(layer_errors), len(spent)
    )


class _Form:
    """How examples become rows of numbers: logarithms, and one column per operator and type seen."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._ops = sorted({example.op for example in examples})
        self._dtypes = sorted({example.dtype for example in examples})

    def matrix(self, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        import numpy as np

        return np.array(
            [
                [
                    *example.numbers,
                    *(example.op == op for op in self._ops),
                    *(example.dtype == dtype for dtype in self._dtypes),
                ]
                for example in examples
            ],
            dtype=np.float64,
        )


class _Model:
    """The fitted roofline, and trees for what it misses, of one slot."""

    def __init__(self, examples: Sequence[Example]) -> None:
        try:
            from sklearn.ensemble import ExtraTreesRegressor
        except ImportError:
            raise MissingExtraError(
                "learned predictions need scikit-learn: pip install 'tflite-dse[learned]'"
            ) from None
        import numpy as np

        self._form = _Form(examples)
        self._lines = _fit_lines(examples)
        trees = ExtraTreesRegressor(n_estimators=N_TREES, max_features=1.0, random_state=0)
        base = self._base(examples)
        target = np.log([max(FLOOR_NS, example.cost_ns) for example in examples])
        self._trees = trees.fit(
            np.column_stack([self._form.matrix(examples), base]),
            target - base,
            sample_weight=np.exp(WEIGHT_POWER * target),
        )

    def predict(self, examples: Sequence[Example]) -> list[int]:
        """Return costs in nanoseconds, at least 1."""
        import numpy as np

        if not examples:
            return []
        base = self._base(examples)
        missed = self._trees.predict(np.column_stack([self._form.matrix(examples), base]))
        return [max(1, round(math.exp(value))) for value in base + missed]

    def _base(self, examples: Sequence[Example]) -> np.ndarray[Any, Any]:
        import numpy as np

        costs = [
            sum(a * x for a, x in zip(self._lines.get(_kind(e), self._lines[""]), _terms(e), strict=True))
            for e in examples
        ]
        return np.log(np.maximum(FLOOR_NS / 2, costs))


def _fit_lines(examples: Sequence[Example]) -> dict[str, tuple[float, ...]]:
    """Fit cost = sum of coefficients times ``_terms``, per kind of layer, and over all ("")."""
    import numpy as np
    from scipy.optimize import nnls

    groups: dict[str, list[Example]] = {"": list(examples)}
    for example in examples:
        groups.setdefault(_kind(example), []).append(example)
    lines: dict[str, tuple[float, ...]] = {}
    for kind, members in groups.items():
        if kind and len(members) < FEWEST_FOR_A_LINE:
            continue
        costs = np.array([max(FLOOR_NS, example.cost_ns) for example in members])
        terms = np.array([_terms(example) for example in members]) / costs[:, None]
        coefficients, _ = nnls(terms, np.ones(len(members)))
        lines[kind] = tuple(float(value) for value in coefficients)
    return lines


def _terms(example: Example) -> tuple[float, ...]:
    """Return a constant, multiply-accumulates, other arithmetic, traffic and weights of a layer."""
    return (1000.0, *(math.expm1(value) for value in example.numbers[:4]))


def _kind(example: Example) -> str:
    """Return what has a line of its own: operator and width of type, and how the kernel works."""
    kind = f"{example.op} {'narrow' if example.dtype in NARROW else 'wide'}"
    number = dict(zip(NUMBERS, example.numbers, strict=True))
    if example.op == "FULLY_CONNECTED":  # reads its weights once for one vector, else works on them
        return f"{kind} {'vector' if number['output_positions'] < _ONE else 'matrix'}"
    if example.op == "CONV_2D":
        pointwise = max(number["kernel_height"], number["kernel_width"]) < _ONE
        return f"{kind} {'pointwise' if pointwise else 'window'}"
    return kind


def _unlabelled(graph: LayerGraph, layer: Layer) -> Example:
    dtype = graph.tensors[layer.outputs[0]].dtype if layer.outputs else ""
    return Example(graph.name, layer.op, dtype, numbers_of(graph, layer), 0)


def _as_json(validation: Validation | None) -> dict[str, Any] | None:
    if validation is None:
        return None
    return {
        "layer_error": round(validation.layer_error, 4),
        "model_error": round(validation.model_error, 4),
        "n_layers": validation.n_layers,
        "n_models": validation.n_models,
    }
