"""Cut models at every position and in random convex stages, and compare the pieces with the whole.

    python benchmarks/cut_everywhere.py --models FOLDER --zoo --positions 150 --random 12

Both run under the same kernels; the largest difference is printed for each model, in shares of the
output's range (floating point) or in quantisation steps (integers): 0 means bit-equal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from dse.errors import DseError, RuntimeRefusedError
from dse.flatbuffer.cut import possible_cuts
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import ModelFile, model_from_bytes, read_model

# Real models with operators that the runtime lacks.
KNOWN_REFUSED = frozenset({"mediapipe__face_landmark_with_attention"})
HELPERS = Path(__file__).resolve().parents[1] / "tests" / "dse" / "flatbuffer"


def main() -> None:
    """Check every model; exit code 1 when one differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder of .tflite files")
    parser.add_argument("--zoo", action="store_true", help="the zoo's architectures, in small forms")
    parser.add_argument("--positions", type=int, default=150, help="at most so many positions of each model")
    parser.add_argument("--random", type=int, default=12, help="so many random cuts in 3 or 4 stages")
    parser.add_argument("--only", default="", help="only models with this in their name")
    args = parser.parse_args()
    sys.path.insert(0, str(HELPERS))
    import cutting
    import running
    import test_zoo_cuts

    from dse.zoo import registry

    def zoo_model(name: str) -> ModelFile:
        return model_from_bytes(encode(registry.build(name, test_zoo_cuts.SMALL[name], seed=1)), name)

    models = [
        (path.stem, lambda path=path: read_model(path))
        for path in sorted((args.models or Path("/nowhere")).glob("*.tflite"))
    ]
    if args.zoo:
        models += [(name, lambda name=name: zoo_model(name)) for name in registry.ZOO]
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        runner = running.ModelRunner(Path(folder))
        for name, load in models:
            if args.only not in name:
                continue
            file = cutting.audible(load())
            graph = build_graph(file)
            start = time.perf_counter()
            try:
                halves = cutting.check_positions(file, graph, runner, args.positions)
                parts = cutting.check_random(file, graph, runner, range(args.random))
                verdict = f"halves {halves:.3g}, random stages {parts:.3g}"
            except RuntimeRefusedError as error:
                verdict = f"the runtime refuses it: {str(error).splitlines()[0][:100]}"
                failed += name not in KNOWN_REFUSED
            except (AssertionError, DseError) as error:
                verdict, failed = f"FAILED: {str(error).splitlines()[0][:150]}", failed + 1
            n = len(cutting.sample(possible_cuts(graph), args.positions))
            took = time.perf_counter() - start
            print(f"{name:42} {len(graph.layers):4} layers, {n:4} positions: {verdict} ({took:.0f} s)")
            sys.stdout.flush()
        runner.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
