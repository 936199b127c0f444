"""Running models and splits of them in a supervised child, for tests of any part.

The child's death (native code crashes on what it does not like) becomes an error of the test.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dse.devices.child import Child
from dse.errors import RuntimeRefusedError

HERE = Path(__file__).resolve().parent
# Of the output's range; the same as the product's check uses.
FLOAT_TOLERANCE = 1e-4


class ModelRunner:
    """Runs models, given as paths or bytes, one after another in one child."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._child = None
        self._n = 0

    def run(self, model, frames, *, builtin=False, shapes=None):
        """Return per frame the outputs in the model's order."""
        self._n += 1
        path = model
        if not isinstance(model, Path):
            path = self._folder / f"model_{self._n}.tflite"
            path.write_bytes(model)
        inputs, outputs = self._folder / "in.npz", self._folder / "out.npz"
        np.savez(
            inputs, **{f"{f}_{i}": array for f, frame in enumerate(frames) for i, array in enumerate(frame)}
        )
        if self._child is None:
            self._child = Child(
                "model_child",
                log_path=self._folder / "log.txt",
                name="test runner",
                env={"PYTHONPATH": str(HERE)},
            )
        try:
            self.answer = self._child.request(
                {
                    "command": "run",
                    "model": str(path),
                    "inputs": str(inputs),
                    "outputs": str(outputs),
                    "n_frames": len(frames),
                    "builtin": builtin,
                    "shapes": shapes or {},
                },
                timeout_s=120,
            )
        except RuntimeRefusedError:
            raise  # the child is well
        except Exception:
            self.close()
            raise
        finally:
            if not isinstance(model, Path):
                path.unlink()
        with np.load(outputs) as arrays:
            return [
                tuple(arrays[f"{f}_{i}"] for i in range(len(self.answer["names"][1])))
                for f in range(len(frames))
            ]

    def run_split(self, split, frames, *, builtin=False):
        """Run the stages one after the other; return what the whole model would."""
        values = [
            {tensor.tensor: array for tensor, array in zip(split.inputs, frame, strict=True)}
            for frame in frames
        ]
        for stage in split.stages:
            given = [tuple(at[tensor.tensor] for tensor in stage.inputs) for at in values]
            outputs = self.run(stage.data, given, builtin=builtin)
            for at, frame in zip(values, outputs, strict=True):
                at.update(zip((tensor.tensor for tensor in stage.outputs), frame, strict=True))
        return [tuple(at[tensor.tensor] for tensor in split.outputs) for at in values]

    def close(self):
        """End the child."""
        if self._child is not None:
            self._child.kill()
            self._child.close()
            self._child = None


def difference(whole, split):
    """Return the largest difference: in steps for integers, in shares of the range for floats."""
    worst = 0.0
    for position in range(len(whole[0])):
        theirs = np.stack([frame[position] for frame in whole])
        ours = np.stack([frame[position] for frame in split])
        assert theirs.dtype == ours.dtype
        assert theirs.shape == ours.shape
        if np.array_equal(theirs, ours, equal_nan=theirs.dtype.kind == "f"):
            continue
        gap = float(np.nanmax(np.abs(theirs.astype(float) - ours.astype(float))))
        if theirs.dtype.kind == "f":
            spread = float(np.nanmax(theirs) - np.nanmin(theirs))
            gap = gap / spread if spread else float("inf")
        worst = max(worst, gap)
    return worst


def moved(outputs):
    """Whether some output differs between frames."""
    return any(
        not np.array_equal(outputs[0][position], frame[position])
        for frame in outputs[1:]
        for position in range(len(frame))
    )
