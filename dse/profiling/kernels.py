"""Which kernels of a delegate belong to which operator, by order and kind.

A delegate turns a row of operators into a row of kernels in the same order.  Most operators become
one kernel; some become several (a copy per input of a concatenation, a conversion before a
product); some disappear into a neighbour's kernel (an activation, a padding).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_CONVOLUTION = ("Convolution", "Fully Connected", "Batch Matrix Multiply")
_RESHAPE = ("Static Reshape", "Copy", "Static Expand Dims", "Split Dims", "Fuse Dims")
# Kernel names start with one of these words, by operator.
MAIN: Mapping[str, tuple[str, ...]] = {
    "ABS": ("Abs",),
    "ADD": ("Add",),
    "AVERAGE_POOL_2D": ("Average Pooling", "Mean"),
    "BATCH_MATMUL": ("Batch Matrix Multiply", "Fully Connected", "Dynamic Fully Connected"),
    "CAST": ("Convert", "Copy"),
    "CEIL": ("Ceiling",),
    "CONCATENATION": ("Copy",),  # one per input
    "CONV_2D": _CONVOLUTION,
    "COS": ("Cosine",),
    "DEPTHWISE_CONV_2D": ("Convolution",),
    "DEPTH_TO_SPACE": ("Depth To Space",),
    "DEQUANTIZE": ("Convert",),
    "DIV": ("Divide",),
    "ELU": ("ELU",),
    "EXP": ("Exp",),
    "EXPAND_DIMS": _RESHAPE,
    "FLOOR": ("Floor",),
    "FULLY_CONNECTED": ("Fully Connected", "Dynamic Fully Connected", "Batch Matrix Multiply"),
    "GELU": ("GELU", "ApproxGELU"),
    "HARD_SWISH": ("HardSwish",),
    "LEAKY_RELU": ("LeakyReLU",),
    "LOG": ("Log",),
    "LOGISTIC": ("Sigmoid",),
    "MAXIMUM": ("Maximum",),
    "MAX_POOL_2D": ("Max Pooling",),
    "MEAN": ("Mean", "Average Pooling", "Mean Squared"),
    "MINIMUM": ("Minimum",),
    "MUL": ("Multiply",),
    "NEG": ("Negate",),
    "PACK": ("Copy",),
    "PAD": ("Constant Pad",),
    "PADV2": ("Constant Pad",),
    "POW": ("Power",),
    "PRELU": ("PReLU",),
    "QUANTIZE": ("Convert",),
    "REDUCE_MAX": ("Reduce Max",),
    "REDUCE_MIN": ("Reduce Min",),
    "RELU": ("Clamp",),
    "RELU6": ("Clamp",),
    "RELU_0_TO_1": ("Clamp",),
    "RELU_N1_TO_1": ("Clamp",),
    "RESHAPE": _RESHAPE,
    "RESIZE_BILINEAR": ("Resize Bilinear",),
    "ROUND": ("Bankders Rounding", "Bankers Rounding"),
    "RSQRT": ("Reciprocal Square Root",),
    "SIN": ("Sine",),
    "SLICE": ("Slice",),
    "SOFTMAX": ("Softmax",),
    "SPACE_TO_DEPTH": ("Space To Depth",),
    "SPLIT": ("Slice", "Copy"),
    "SQRT": ("Square Root",),
    "SQUARE": ("Square",),
    "SQUARED_DIFFERENCE": ("Squared Difference",),
    "SQUEEZE": _RESHAPE,
    "STRIDED_SLICE": ("Slice",),
    "SUB": ("Subtract",),
    "SUM": ("Sum", "Normalize"),
    "TANH": ("TanH",),
    "TRANSPOSE": ("Transpose",),
    "TRANSPOSE_CONV": ("Deconvolution",),
    "CUSTOM:Convolution2DTransposeBias": ("Deconvolution",),
    "CUSTOM:MaxPoolingWithArgmax2D": ("ArgMax Pooling",),
    "CUSTOM:MaxUnpooling2D": ("Unpooling",),
    "ASSIGN_VARIABLE": ("Copy",),
    "READ_VARIABLE": ("Copy",),
    "VAR_HANDLE": (),
}
# Kernels that prepare an operator's work, and those that finish it (a fused activation).
BEFORE = ("Copy", "Transpose", "Convert", "Constant Pad", *_RESHAPE)
AFTER = ("Clamp", "Transpose", "Convert", *_RESHAPE)
# Operators that may vanish into a neighbour's kernel.
VANISHING = frozenset(
    {
        "DEQUANTIZE",
        "EXPAND_DIMS",
        "PAD",
        "QUANTIZE",
        "RELU",
        "RELU6",
        "RELU_0_TO_1",
        "RELU_N1_TO_1",
        "RESHAPE",
        "SQUEEZE",
        "TRANSPOSE",
        "VAR_HANDLE",
        "READ_VARIABLE",
        "ASSIGN_VARIABLE",
    }
)
# Operators that vanish into the kernel of the next operator when it is one of these.
VANISHING_BEFORE: Mapping[str, tuple[str, ...]] = {
    "MUL": ("Normalize", "Mean Squared"),
    "SQUARE": ("Normalize", "Mean Squared"),
}
# Operators that become a row of equal kernels, one per input or output.
ROWS = frozenset({"CONCATENATION", "PACK", "SPLIT", "UNPACK"})
_ROW_PENALTY = 1
_SECOND_PENALTY = 3
_HELPER_PENALTY = 2
_VANISHED_PENALTY = 3
_MOST_KERNELS = 24


@dataclass(frozen=True, slots=True)
class Rules:
    """Of which kernels operators are made.

    Parameters
    ----------
    main
        By operator, the words with which the name of its own kernel starts.
    before, after
        Kernels that may stand in front of or behind an operator's own.
    vanishing
        Operators that may have no kernel.
    vanishing_before
        Operators that may have no kernel when the next kernel is one of these.
    rows
        Operators that may have many kernels of their own.
    """

    main: Mapping[str, tuple[str, ...]]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    vanishing: frozenset[str] = frozenset()
    vanishing_before: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rows: frozenset[str] = frozenset()


XNNPACK = Rules(MAIN, BEFORE, AFTER, VANISHING, VANISHING_BEFORE, ROWS)


@dataclass(frozen=True, slots=True)
class Share:
    """The kernels of one operator: numbers ``start`` to ``stop`` (not included); none when it vanished."""

    start: int
    stop: int

    @property
    def vanished(self) -> bool:
        """Whether the operator has no kernel of its own."""
        return self.start == self.stop


def align(
    operators: Sequence[str], kernels: Sequence[str], rules: Rules | None = None
) -> tuple[Share, ...] | None:
    """Part a row of kernels among a row of operators.

    Parameters
    ----------
    operators
        Operator kinds in execution order, for example ``CONV_2D``.
    kernels
        Kernel names in execution order, for example ``Convolution (NHWC, F32) IGEMM``.
    rules
        Of which kernels an operator is made; by default those of XNNPACK.

    Returns
    -------
    tuple of Share or None
        One per operator, together all kernels; None when the rows do not fit.

    Notes
    -----
    A dynamic programme over (operators, kernels) that finds the parting with the fewest helpers and
    vanished operators, in O(operators x kernels x kernels per operator).
    """
    rules = rules or XNNPACK
    n, m = len(operators), len(kernels)
    # best[i][j]: least penalty of giving the first j kernels to the first i operators, and the
    # number of kernels that the last of them got.
    best: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]
    for i, operator in enumerate(operators):
        row: dict[int, tuple[int, int]] = {}
        for j, (penalty, _) in best[i].items():
            for taken, extra in _takes(operator, kernels[j : j + _MOST_KERNELS], rules):
                if j + taken not in row or penalty + extra < row[j + taken][0]:
                    row[j + taken] = (penalty + extra, taken)
        best.append(row)
    if m not in best[n]:
        return None
    shares: list[Share] = []
    stop = m
    for i in range(n, 0, -1):
        taken = best[i][stop][1]
        shares.append(Share(stop - taken, stop))
        stop -= taken
    return tuple(reversed(shares))


def _takes(operator: str, kernels: Sequence[str], rules: Rules) -> list[tuple[int, int]]:
    """Return (number of kernels, penalty) for each way in which an operator may start this row."""
    found = [(0, _VANISHED_PENALTY)] if operator in rules.vanishing else []
    if kernels and _starts_with(kernels[0], rules.vanishing_before.get(operator, ())):
        found.append((0, _VANISHED_PENALTY))
    main = rules.main.get(operator)
    if main is None:
        return found
    penalty, has_main = 0, False
    for taken, kernel in enumerate(kernels, start=1):
        if _starts_with(kernel, main):
            if has_main:
                penalty += _ROW_PENALTY if operator in rules.rows else _SECOND_PENALTY
            has_main = True
        elif _starts_with(kernel, rules.after if has_main else rules.before):
            penalty += _HELPER_PENALTY
        else:
            break
        if has_main:
            found.append((taken, penalty))
    return found


def _starts_with(kernel: str, words: Sequence[str]) -> bool:
    return any(kernel == word or kernel.startswith(f"{word} (") for word in words)
