"""The target ``android``."""

from __future__ import annotations

from pathlib import Path

from dse.deploy.native import write_sources
from dse.deploy.target import Deployment, Manual, Target
from dse.files import write_text

_HERE = Path(__file__).parent


class Android(Target):
    """An Android device behind adb."""

    name = "android"
    summary = "a throughput check over adb, and the runner in C for the NDK"

    def write(self, deployment: Deployment) -> Manual:
        """Write the throughput check and the sources of the runner."""
        folder, name = deployment.folder, deployment.order.name
        write_text(folder / "bench.py", (_HERE / "bench.py").read_text(encoding="utf-8"))
        write_sources(folder / "native")
        return Manual(_USAGE.format(name=name), ("bench.py",))


_USAGE = """\
## Check the throughput of its stages

`bench.py` needs `adb` here and LiteRT's (TensorFlow Lite's) `benchmark_model` for the device. It checks
`SHA256SUMS`, pushes the stages, runs each alone, pinned to its cores with `taskset`, reads the mask back,
and tells what each lane can reach:

```sh
python3 bench.py --benchmark-model ./benchmark_model
python3 bench.py --benchmark-model /data/local/tmp/benchmark_model --serial SERIAL --json
```

## Run the pipelines

The runner in `native/` is C11. Build it with the NDK (written for it, but tflite-dse has only tried it on
Linux: on x86-64, and on an emulated aarch64):

```sh
cmake -S native -B build -DCMAKE_TOOLCHAIN_FILE=$NDK/build/cmake/android.toolchain.cmake \\
      -DANDROID_ABI=arm64-v8a -DANDROID_PLATFORM=android-28
cmake --build build
```

It loads `libLiteRt.so` when it starts: take the one for `arm64-v8a` from the LiteRT package for Android
(`com.google.ai.edge.litert:litert`, folder `jni/arm64-v8a`; the version that the stages were measured with,
or newer). Then push all of it, and check and run there:

```sh
adb push . /data/local/tmp/{name}
adb push libLiteRt.so /data/local/tmp/{name}/
adb shell "cd /data/local/tmp/{name}; chmod 755 build/run"
adb shell "cd /data/local/tmp/{name}; build/run --library ./libLiteRt.so --verify; echo rc=$?"
adb shell "cd /data/local/tmp/{name}; build/run --library ./libLiteRt.so --seconds 10; echo rc=$?"
```

Devices whose adb lacks the feature `shell_v2` always report exit code 0: hence `; echo rc=$?`. A shell may
use only the cores of its cpuset (`cat /proc/self/status`): keep the screen on, or run as root, when cores of
`mapping.yaml` are missing. `build/libpipeline.so` is the same pipeline as a library, for use through JNI
(`native/pipeline.h`).
"""
