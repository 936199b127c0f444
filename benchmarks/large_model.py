"""Read a large model and cut it in four: time and peak memory, each step in a process of its own.

    python benchmarks/large_model.py [--layers 8] [--keep FOLDER]

The model is a BERT encoder of the zoo (H=768, I=3072, A=12): about 230 MB with 8 layers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BUILD = """
import sys
from pathlib import Path
from dse.zoo.registry import build_file
build_file("bert_encoder", Path(sys.argv[1]), {"hidden": 768, "layers": int(sys.argv[2]), "heads": 12})
"""
MEASURE = """
import json, resource, sys, time
from pathlib import Path
path, what = Path(sys.argv[1]), sys.argv[2]
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
from dse.flatbuffer.reader import read_model
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.cut import split
import flatbuffers
before = peak()
start = time.perf_counter()
file = read_model(path)
read_s = time.perf_counter() - start
graph = build_graph(file)
graph_s = time.perf_counter() - start
answer = {"read_s": read_s, "read_and_graph_s": graph_s, "peak_over_file": (peak() - before) / file.n_bytes}
if what == "split":
    n = len(graph.layers)
    borders = [0, n // 4, n // 2, 3 * n // 4, n]
    start = time.perf_counter()
    pieces = split(file, graph, [range(a, b) for a, b in zip(borders, borders[1:])])
    answer = {"split_s": time.perf_counter() - start, "peak_over_file": (peak() - before) / file.n_bytes}
    answer["stage_bytes"] = [len(stage.data) for stage in pieces.stages]
answer["file_bytes"] = file.n_bytes
print(json.dumps(answer))
"""


def main() -> None:
    """Build the model, then measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="folder that keeps the model")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        path = folder / f"bert_{args.layers}.tflite"
        if not path.exists():
            subprocess.run([sys.executable, "-c", BUILD, str(path), str(args.layers)], check=True)
        for what in ("read", "split"):
            command = [sys.executable, "-c", MEASURE, str(path), what]
            runs = [
                json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(3)
            ]
            key = "split_s" if what == "split" else "read_and_graph_s"
            best = min(runs, key=lambda run: float(run[key]))
            print(f"{what}:", json.dumps(best, indent=1))


if __name__ == "__main__":
    main()
