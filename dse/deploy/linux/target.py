"""The target ``linux``: a runner in one Python file, and one in C, for the same bundle."""

from __future__ import annotations

from pathlib import Path

from dse.deploy.native import write_sources
from dse.deploy.target import Deployment, Manual, Target
from dse.files import write_text

_HERE = Path(__file__).parent


class Linux(Target):
    """Linux with Python, or with nothing but the runtime's shared library."""

    name = "linux"
    summary = "runners in Python and in C, and an example of a systemd service"

    def write(self, deployment: Deployment) -> Manual:
        """Write the runners and an example of a service."""
        folder, name = deployment.folder, deployment.order.name
        write_text(folder / "run.py", (_HERE / "run.py").read_text(encoding="utf-8"))
        write_sources(folder / "native")
        write_text(folder / f"{name}.service", _SERVICE.format(name=name))
        return Manual(_USAGE.format(name=name), ("run.py",))


_SERVICE = """\
# An example: set the paths, the user and the source, copy it to /etc/systemd/system, then
#   systemctl daemon-reload && systemctl enable --now {name}
[Unit]
Description={name}: frames through its pipelines
After=multi-user.target

[Service]
# The folder of this bundle, and a Python that has ai-edge-litert and numpy.
WorkingDirectory=/opt/{name}
ExecStartPre=/opt/venv/bin/python run.py --verify
ExecStart=/opt/venv/bin/python run.py --source camera:frames --output show:draw
# One SIGTERM to the parent: it finishes and delivers what is under way, then ends the lanes.
KillMode=mixed
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
User=nobody
ProtectSystem=strict
NoNewPrivileges=true
# Let nothing else run on the cores of the stages, for example with CPUAffinity= of other units;
# do not set CPUAffinity= here to less than the cores in mapping.yaml.

[Install]
WantedBy=multi-user.target
"""

_USAGE = """\
## Run it with Python

Python 3.9 or newer with two packages: `pip install ai-edge-litert numpy`. Nothing else is needed.

```sh
python3 run.py --verify               # checksums, and outputs of every lane against the reference
python3 run.py --seconds 10           # frames per second and latency on the reference frames
python3 run.py --frames clip.npy --output results
camera | python3 run.py --frames - --output -
python3 run.py --source camera:frames --output show:draw
```

Frames come from `.npy` files (along the first axis; a folder with `input_0.npy`, `input_1.npy`, ... for
several inputs), raw from standard input, or from an iterable of tuples of arrays that a function of
yours returns; outputs go to a folder, raw to standard output, or to a function of yours, called as
`sink(number, outputs)`. `python3 run.py --help` tells the rest. SIGINT and SIGTERM stop it cleanly.
Every run checks the files that it uses against `SHA256SUMS`; `--verify` checks all of them.
The process must be allowed to use the cores in `mapping.yaml`. `{name}.service` is an example for systemd.

## Run it without Python

The runner in `native/` is C11 and needs a compiler, CMake 3.16 and LiteRT's shared library, `libLiteRt.so`:
that of the Python package (`python3 -c "import ai_edge_litert; print(ai_edge_litert.__path__[0])"` names its
folder), or of LiteRT's releases. It pays a microsecond per hand-over, where Python pays tens.

```sh
cmake -S native -B build && cmake --build build
export LITERT_LIBRARY=/path/to/libLiteRt.so
build/run --verify
build/run --seconds 10
build/run --frames clip.npy --output results
```

`build/libpipeline.so` is the same pipeline as a library, for other programs: `native/pipeline.h` tells how to
use it. Models with fused state (LSTM with variable tensors) are refused by the C API: `run.py` runs those
stages in the interpreter.
"""
