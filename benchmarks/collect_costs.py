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
from benchmarks.sample_layers import write_samples
from dse.costs import CostTable
from dse.errors import DseError
from dse.files import write_json
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import read_model
from dse.zoo import build_file

# Small enough to be built and profiled in seconds, unlike enough to learn from.  What follows a dash tells
# the variants of one architecture apart: predictions of one may not learn from another.
ZOO: dict[str, dict[str, int]] = {
    "alexnet-131": {"size": 131},
    "bert_encoder": {"hidden": 256, "heads": 4, "layers": 2, "intermediate": 1024},
    "bert_encoder-512": {"hidden": 512, "heads": 8, "layers": 1, "intermediate": 2048, "sequence": 64},
    "bert_encoder-128": {"hidden": 128, "heads": 2, "layers": 2, "intermediate": 512, "sequence": 192},
    "googlenet": {},
    "googlenet-128": {"size": 128},
    "inception_v3": {},
    "inception_v3-160": {"size": 160},
    "mobilenet_v1": {},
    "mobilenet_v1-160": {"size": 160, "width": 50},
    "mobilenet_v1-96": {"size": 96, "width": 140},
    "mobilenet_v1_int8": {},
    "mobilenet_v1_int8-160": {"size": 160, "width": 50},
    "mobilenet_v1_int8-96": {"size": 96, "width": 140},
    "mobilenet_v2": {},
    "mobilenet_v2-160": {"size": 160, "width": 50},
    "mobilenet_v2-96": {"size": 96, "width": 140},
    "mobilenet_v2_int8": {},
    "mobilenet_v2_int8-160": {"size": 160, "width": 50},
    "mobilenet_v2_int8-96": {"size": 96, "width": 140},
    "resnet50": {},
    "resnet50-112": {"size": 112},
    "squeezenet": {},
    "squeezenet-128": {"size": 128},
    "streaming_lstm": {},
    "two_stream": {},
    "two_stream-64": {"size": 64, "base": 48},
    "unet": {},
    "unet-64": {"size": 64, "base": 24},
    "unet-96": {"size": 96, "base": 10, "depth": 3},
}


def build_all(folder: Path) -> list[Path]:
    """Write the models of ``ZOO`` and those drawn by chance, where they are not there yet."""
    for name, parameters in ZOO.items():
        path = folder / f"{name}.tflite"
        if not path.exists():
            build_file(name.partition("-")[0], path, parameters)
    return [*(folder / f"{name}.tflite" for name in ZOO), *write_samples(folder)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--budget-s", type=float, default=2.0)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--built", type=Path, help="Folder that keeps the models of the zoo.")
    parser.add_argument("--only", default="", metavar="PREFIX", help="Models whose names start so.")
    options = parser.parse_args(arguments)
    here = platform(options.threads)
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = options.built or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (*build_all(folder), *options.models):
            if not path.stem.startswith(options.only):
                continue
            file = read_model(path)
            try:
                table, took_s = timed_profile(file, build_graph(file), here, options.budget_s, "auto")
            except DseError as error:
                print(f"{path.stem}: {error}", flush=True)
                continue
            write_json(options.output / f"{path.stem}.json", slim(table).to_json())
            print(path.stem, f"{took_s:.1f} s", [round(f, 3) for f in table.calibration], flush=True)


def slim(table: CostTable) -> CostTable:
    """Keep one sample per cost, to show that it was measured."""
    return dataclasses.replace(
        table,
        costs=tuple(
            tuple(dataclasses.replace(cost, samples_ns=cost.samples_ns[:1]) for cost in row)
            for row in table.costs
        ),
        whole=tuple(
            whole and dataclasses.replace(whole, samples_ns=whole.samples_ns[:1]) for whole in table.whole
        ),
    )


if __name__ == "__main__":
    main()
