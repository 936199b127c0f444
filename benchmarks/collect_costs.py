"""Profile models of the zoo and of given files: ``python -m benchmarks.collect_costs --output FOLDER``.

Writes one cost table per model, for the learned predictor and for comparing predictions.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.profiling import platform, timed_profile
from dse.errors import DseError
from dse.files import write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.zoo import build_file

# Small enough to be built and profiled in seconds, unlike enough to learn from.
ZOO = {
    "mobilenet_v1": {},
    "mobilenet_v2": {},
    "squeezenet": {},
    "googlenet": {},
    "resnet50": {},
    "inception_v3": {},
    "bert_encoder": {"hidden": 256, "heads": 4, "layers": 2, "intermediate": 1024},
    "unet": {},
    "mobilenet_v1_int8": {},
    "mobilenet_v2_int8": {},
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--budget-s", type=float, default=8.0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    here = platform(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        built = []
        for entry, parameters in ZOO.items():
            built.append(Path(name) / f"{entry}.tflite")
            build_file(entry, built[-1], parameters)
        for path in (*built, *options.models):
            file = read_model(path)
            try:
                table, took_s = timed_profile(file, build_graph(file), here, options.budget_s, "auto")
            except DseError as error:
                print(f"{path.stem}: {error}", flush=True)
                continue
            slim = tuple(
                tuple(dataclasses.replace(c, samples_ns=c.samples_ns[:1]) for c in r) for r in table.costs
            )
            whole = tuple(w and dataclasses.replace(w, samples_ns=w.samples_ns[:1]) for w in table.whole)
            write_json(
                options.output / f"{path.stem}.json",
                dataclasses.replace(table, costs=slim, whole=whole).to_json(),
            )
            print(path.stem, f"{took_s:.1f} s", [round(f, 3) for f in table.calibration], flush=True)


if __name__ == "__main__":
    main()
