"""Runs models on the real Arm NN: ``/usr/bin/python3 armnn_child.py FOLDER``.

FOLDER holds ``N.tflite`` and ``N_in_K.npy``; written are ``N_out_K.npy`` and ``answers.json``, which
says for each model that Arm NN refused why it did.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarmnn as ann


def run(runtime, path):
    parser = ann.ITfLiteParser()
    network = parser.CreateNetworkFromBinaryFile(str(path))
    backends = [ann.BackendId("CpuRef")]
    optimised, _ = ann.Optimize(network, backends, runtime.GetDeviceSpec(), ann.OptimizerOptions())
    identifier, _ = runtime.LoadNetwork(optimised)
    ins = [parser.GetNetworkInputBindingInfo(0, n) for n in parser.GetSubgraphInputTensorNames(0)]
    outs = [parser.GetNetworkOutputBindingInfo(0, n) for n in parser.GetSubgraphOutputTensorNames(0)]
    values = [np.load(path.with_name(f"{path.stem}_in_{k}.npy")) for k in range(len(ins))]
    outputs = ann.make_output_tensors(outs)
    runtime.EnqueueWorkload(identifier, ann.make_input_tensors(ins, values), outputs)
    for k, (_, tensor) in enumerate(outputs):
        np.save(path.with_name(f"{path.stem}_out_{k}.npy"), tensor.get_memory_area())


def main(folder):
    runtime, refused = ann.IRuntime(ann.CreationOptions()), {}
    for path in sorted(folder.glob("*.tflite")):
        try:
            run(runtime, path)
        except RuntimeError as error:
            refused[path.stem] = str(error)
    (folder / "answers.json").write_text(json.dumps(refused))


main(Path(sys.argv[1]))
