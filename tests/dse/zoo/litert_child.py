"""Run a model in LiteRT: ``python litert_child.py MODEL FRAMES.npz ANSWERS.npz [builtin]``.

Runs in a process of its own, because native code may crash.  FRAMES holds ``f{frame}_{input}``.
Variables are reset before every frame unless the fifth argument says ``stream``.
"""

import sys

import numpy as np
from ai_edge_litert.interpreter import Interpreter


def main(model, frames, answers, stream):
    interpreter = Interpreter(model, num_threads=1)
    interpreter.allocate_tensors()
    given = np.load(frames)
    inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
    n_frames = len(given.files) // len(inputs)
    found = {}
    for frame in range(n_frames):
        if stream != "stream":
            interpreter.reset_all_variables()
        for number, detail in enumerate(inputs):
            interpreter.set_tensor(detail["index"], given[f"f{frame}_{number}"])
        interpreter.invoke()
        for number, detail in enumerate(outputs):
            found[f"f{frame}_{number}"] = interpreter.get_tensor(detail["index"])
    np.savez(answers, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
