#!/usr/bin/env python3
"""Time the stages of this bundle on an Android device; needs adb and the device's benchmark_model.

  python3 bench.py --benchmark-model ./benchmark_model        pushes it as well
  python3 bench.py --benchmark-model /data/local/tmp/benchmark_model --serial R5CR...

Pushes the stages, compares their checksums on the device, and runs each stage alone, pinned to its
cores.  A pipeline is as fast as its slowest stage, so this tells what a lane can reach; stages that
run beside each other share memory and heat, which this does not show.  Exit codes: 0 done, 1 failed,
2 bad input.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 600
XNNPACK = {"default": "true", "builtin": "false"}


class FailedError(Exception):
    """The work failed (exit code 1)."""


class BadInputError(FailedError):
    """Something given can not be used (exit code 2)."""


def read_plan(folder: Path) -> list[list[dict[str, Any]]]:
    """Read the stages of each lane from ``plan.txt``."""
    lanes: list[list[dict[str, Any]]] = []
    try:
        for line in (folder / "plan.txt").read_text(encoding="ascii").splitlines():
            word, *fields = line.split(" ")
            if word == "lane":
                lanes.append([])
            elif word == "stage":
                name, threads, cores, kernels, file = (unescape(field) for field in fields)
                mask = sum(1 << int(core) for core in cores.split(","))
                stage = {
                    "name": name,
                    "threads": int(threads),
                    "mask": mask,
                    "kernels": kernels,
                    "file": file,
                }
                lanes[-1].append(stage)
    except (OSError, ValueError, IndexError) as error:
        raise BadInputError(f"{folder / 'plan.txt'}: can not be read: {error}") from None
    return lanes


def unescape(field: str) -> str:
    """Read a field of the plan: %XX is a byte."""
    raw = re.sub(rb"%([0-9A-F]{2})", lambda found: bytes([int(found[1], 16)]), field.encode())
    return raw.decode("utf-8", "surrogateescape")


def check_sums(folder: Path) -> dict[str, str]:
    """Check every file of the bundle; returns the sums by name."""
    sums = {}
    for line in (folder / "SHA256SUMS").read_text(encoding="utf-8").removesuffix("\n").split("\n"):
        sums[line[66:]] = line[:64]
        data = (folder / line[66:]).read_bytes()
        if hashlib.sha256(data).hexdigest() != line[:64]:
            raise BadInputError(f"{line[66:]} was changed: copy or export the bundle again")
    return sums


class Device:
    """A device behind adb.

    Parameters
    ----------
    adb
        The program.
    serial
        Which device; None for the only one.
    """

    def __init__(self, adb: str, serial: str | None) -> None:
        self._adb = [adb, *(("-s", serial) if serial else ())]

    def call(self, *arguments: str) -> str:
        """Call adb and return what it says."""
        command = [*self._adb, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=TIMEOUT_S, check=False, errors="replace"
            )
        except FileNotFoundError:
            raise BadInputError(
                f"{self._adb[0]}: not found; install adb or give its path with --adb"
            ) from None
        except subprocess.TimeoutExpired:
            raise FailedError(f"adb {arguments[0]}: no answer in {TIMEOUT_S} s") from None
        if done.returncode:
            raise FailedError(f"adb {arguments[0]}: {(done.stderr or done.stdout).strip()}")
        return done.stdout + done.stderr

    def shell(self, command: str) -> tuple[int, str]:
        """Run a command there; returns its exit code and output.

        Older devices always tell adb 0, so the shell itself says the code.
        """
        text = self.call("shell", f"{command}; echo rc=$?")
        found = re.search(r"rc=(\d+)\s*$", text)
        if found is None:
            raise FailedError(f"the device broke off: {text.strip()[-300:]}")
        return int(found[1]), text[: found.start()]


def push(device: Device, folder: str, sums: dict[str, str], benchmark: str) -> str:
    """Push stages and, when it is a file here, benchmark_model; returns its path on the device."""
    code, text = device.shell(f"mkdir -p {shlex.quote(folder + '/stages')}")
    if code:
        raise FailedError(f"{folder}: can not be made on the device: {text.strip()}")
    if Path(benchmark).is_file():
        device.call("push", benchmark, f"{folder}/benchmark_model")
        benchmark = f"{folder}/benchmark_model"
        device.shell(f"chmod 755 {shlex.quote(benchmark)}")
    for name in sorted(name for name in sums if name.startswith("stages/")):
        device.call("push", str(HERE / name), f"{folder}/{name}")
        code, text = device.shell(f"sha256sum {shlex.quote(f'{folder}/{name}')}")
        if code == 0 and sums[name] not in text:
            raise FailedError(f"{name} arrived damaged on the device")
    return benchmark


def time_stage(device: Device, folder: str, benchmark: str, stage: dict[str, Any], seconds: float) -> float:
    """Run a stage alone, pinned; returns milliseconds per frame."""
    if stage["kernels"] not in XNNPACK:
        raise BadInputError(f"{stage['name']}: benchmark_model has no {stage['kernels']} kernels")
    flags = [
        f"--graph={folder}/{stage['file']}",
        f"--num_threads={stage['threads']}",
        f"--use_xnnpack={XNNPACK[stage['kernels']]}",
        f"--min_secs={seconds:g}",
    ]
    # The mask is read back: some kernels take one and do not apply it.
    inner = f"grep Cpus_allowed: /proc/self/status; exec {shlex.join([benchmark, *flags])}"
    code, text = device.shell(f"taskset {stage['mask']:x} sh -c {shlex.quote(inner)} 2>&1")
    mask = re.search(r"Cpus_allowed:\s*([0-9a-f,]+)", text)
    if mask is None or int(mask[1].replace(",", ""), 16) != stage["mask"]:
        got = mask[1] if mask else "nothing"
        what = f"wanted CPU mask {stage['mask']:x}, the device gives {got}"
        raise FailedError(f"{stage['name']}: {what}: {text.strip()[-300:]}")
    found = re.search(r"Inference \(avg\): ([0-9.]+(?:e[+-]?\d+)?)", text)
    if code or found is None:
        what = f"benchmark_model failed (exit code {code})"
        raise FailedError(f"{stage['name']}: {what}: {text.strip()[-500:]}")
    return float(found[1]) / 1e3


def time_lanes(device: Device, folder: str, benchmark: str, options: argparse.Namespace) -> None:
    """Time every stage, and tell what each lane can reach."""
    total_hz = 0.0
    for number, lane in enumerate(read_plan(HERE)):
        times: dict[int, float] = {}
        for stage in lane:
            took_ms = time_stage(device, folder, benchmark, stage, options.seconds)
            # Stages on the same cores take turns.
            times[stage["mask"]] = times.get(stage["mask"], 0.0) + took_ms
            figures = {"lane": number, "stage": stage["name"], "mask": f"{stage['mask']:x}", "ms": took_ms}
            tell(
                figures,
                f"lane {number}: {stage['name']} on mask {stage['mask']:x}: {took_ms:.3f} ms",
                options,
            )
        lane_hz = 1e3 / max(times.values())
        total_hz += lane_hz
        tell({"lane": number, "hz": lane_hz}, f"lane {number}: at most {lane_hz:.4g} frames/s", options)
    tell({"hz": total_hz}, f"all lanes: at most {total_hz:.4g} frames/s", options)


def tell(figures: dict[str, Any], words: str, options: argparse.Namespace) -> None:
    """Write a line."""
    sys.stdout.write((json.dumps(figures) if options.json else words) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    add = parser.add_argument
    add("--benchmark-model", required=True, metavar="PATH", help="here (is pushed) or on the device")
    add("--device-folder", default=f"/data/local/tmp/{HERE.name}", help="[%(default)s]")
    add("--serial", help="which device [the only one]")
    add("--adb", default="adb", help="[adb]")
    add("--seconds", type=float, default=2.0, help="per stage [2]")
    add("--json", action="store_true", help="lines of JSON instead of words")
    options = parser.parse_args(argv)
    try:
        sums = check_sums(HERE)
        device = Device(options.adb, options.serial)
        folder = options.device_folder.rstrip("/")
        benchmark = push(device, folder, sums, options.benchmark_model)
        time_lanes(device, folder, benchmark, options)
    except (FailedError, OSError) as error:
        sys.stderr.write(f"bench.py: {error}\n")
        return 2 if isinstance(error, BadInputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
