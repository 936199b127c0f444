"""A streaming recogniser: LSTM layers whose state lives from one frame to the next."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import enum_value
from dse.zoo.arithmetic import Floats, logistic
from dse.zoo.builder import Builder
from dse.zoo.draft import Draft, DraftTensor
from dse.zoo.heads import probabilities
from dse.zoo.scaling import BIAS_SIZE, fan_in_scale

GATES = ("input", "forget", "cell", "output")
SAMPLE_FRAMES = 3


def lstm_macs(parameters: Mapping[str, int]) -> int:
    """Return the multiply-accumulates of all matrix products of one invocation.

    Per step and layer four gates of U x (inputs + U), then U x classes.
    """
    units, inputs = parameters["units"], parameters["features"]
    per_step = units * parameters["classes"]
    for _ in range(parameters["layers"]):
        per_step += 4 * units * (inputs + units)
        inputs = units
    return per_step * parameters["steps"]


def draw_streaming_lstm(parameters: Mapping[str, int], seed: int, *, sampled: bool = True) -> Draft:
    """Draw LSTM layers over a stream of feature vectors, and class probabilities for each step.

    Parameters
    ----------
    parameters
        ``steps`` feature vectors per invocation, ``features`` in each, ``units`` and ``layers`` of the
        LSTM, ``classes``.
    seed
        Seed of the weights.
    sampled
        Whether to work out sample frames.

    Notes
    -----
    The state is kept in variable tensors, so an invocation goes on where the last one ended, and
    frames can not be dealt out to copies of the model.

    References
    ----------
    S. Hochreiter, J. Schmidhuber: Long Short-Term Memory, Neural Computation 9(8), 1997.
    Y. Zhang et al.: Hello Edge: Keyword Spotting on Microcontrollers, 2017, arXiv:1711.07128 (the use).
    """
    steps, features, units = parameters["steps"], parameters["features"], parameters["units"]
    net = Builder("streaming_lstm", f"streaming LSTM of {units} units", seed=seed, sampled=sampled)
    sample = net.random("sample_features", (SAMPLE_FRAMES, steps, features)).astype(np.float64)
    x = net.add_input("features", (1, steps, features), sample=sample)
    for layer in range(parameters["layers"]):
        x = lstm(net, x, units, name=f"lstm_{layer}")
    return net.finish([probabilities(net, x, parameters["classes"])])


def lstm(net: Builder, x: DraftTensor, units: int, *, name: str) -> DraftTensor:
    """Draw one fused LSTM layer with its state: (batch, steps, features) -> (batch, steps, units)."""
    batch, steps, features = x.shape
    with net.scope(name):
        weights = [_matrix(net, f"weights_{gate}", units, features) for gate in GATES]
        recurrent = [_matrix(net, f"recurrent_{gate}", units, units) for gate in GATES]
        # Remember by default: the forget gate is open, as trained ones mostly are.
        biases = [
            net.constant(
                (1.0 if gate == "forget" else 0.0) + BIAS_SIZE * net.random(f"bias_{gate}", (units,)),
                f"bias_{gate}",
            )
            for gate in GATES
        ]
        state = [net.add_variable(f"{kind}_state", (batch, units)) for kind in ("output", "cell")]
        no_peepholes, no_projection, no_normalisation = [None] * 3, [None] * 2, [None] * 4
        return net.emit(
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            [x, *weights, *recurrent, *no_peepholes, *biases, *no_projection, *state, *no_normalisation],
            "output",
            (batch, steps, units),
            options=Options(
                "UnidirectionalSequenceLSTMOptions",
                {
                    "fused_activation_function": enum_value("ActivationFunctionType", "TANH"),
                    "cell_clip": 0.0,
                    "proj_clip": 0.0,
                    "time_major": False,
                },
            ),
            evaluate=_evaluate,
        )


def _matrix(net: Builder, name: str, rows: int, columns: int) -> DraftTensor:
    return net.constant(net.random(name, (rows, columns)) * np.float32(fan_in_scale(columns, 1.0)), name)


def _evaluate(x: Floats, *rest: Floats) -> Floats:
    weights, recurrent, biases = rest[0:4], rest[4:8], rest[8:12]
    output, cell = (np.broadcast_to(value, (len(x), value.shape[1])) for value in rest[12:14])
    steps = []
    for step in range(x.shape[1]):
        sums = [
            x[:, step] @ w.T + output @ r.T + b for w, r, b in zip(weights, recurrent, biases, strict=True)
        ]
        write, forget, out = logistic(sums[0]), logistic(sums[1]), logistic(sums[3])
        cell = forget * cell + write * np.tanh(sums[2])
        output = out * np.tanh(cell)
        steps.append(output)
    return np.stack(steps, axis=1)
