"""Mutate .tflite files and see that the reader gives a clean result or a clean error.

    python benchmarks/fuzz_reader.py --models FOLDER --n 100000 --jobs 2

Each file is read, checked, turned into a layer graph, cut in two, and written.  Allowed outcomes: it
works, or a ``ModelError`` or ``CutError``.  Anything else, more than 5 s, or more memory than 3 times
the file plus 200 MB is a failure; it is reported with the seed that makes the file again (``--only SEED``).
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dse.errors import CutError, ModelError
from dse.flatbuffer.cut import possible_cuts, split, stages_at
from dse.flatbuffer.encode import encode, encode_tables
from dse.flatbuffer.layers import build_graph
from dse.flatbuffer.reader import model_from_bytes
from dse.flatbuffer.records import Options
from dse.flatbuffer.tables import TableReader

MAX_SECONDS = 5
MAX_EXTRA_BYTES = 200 << 20
MAX_FILE_FACTOR = 3
# Mostly the tables are mutated: a mutated weight changes nothing that the reader looks at.
SHARE_IN_TABLES = 0.95
# How many files are made from changed tables instead of changed bytes.
SHARE_OF_TABLES = 0.5
INTERESTING = (0, 1, 2, 3, 4, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


@dataclass
class Base:
    """A sound file and the byte ranges of its tables."""

    name: str
    data: bytes
    root: Options
    tables: list[range] = field(default_factory=list)


@dataclass
class Tally:
    """What happened."""

    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest_seed: int = -1


class TooSlowError(Exception):
    """The time is over."""


def load_bases(folder: Path | None, max_bytes: int) -> list[Base]:
    """Read the sound files; without a folder, a few of the zoo's."""
    bases = []
    for path in sorted(folder.glob("*.tflite")) if folder else ():
        if path.stat().st_size <= max_bytes:
            data = path.read_bytes()
            bases.append(Base(path.name, data, TableReader(memoryview(data), "").read_root("Model", b"TFL3")))
    for base in bases:
        base.tables = table_ranges(base.data)
    return bases


def table_ranges(data: bytes) -> list[range]:
    """Find the parts of a file that are not constants."""
    model = model_from_bytes(data).model
    whole = memoryview(data)
    places = []
    for buffer in model.buffers:
        if buffer.data is not None and len(buffer.data) > 64:
            content = bytes(buffer.data)
            start = data.find(content)
            if start >= 0:
                places.append((start, start + len(content)))
    ranges, at = [], 0
    for start, stop in sorted(places):
        if start > at:
            ranges.append(range(at, start))
        at = max(at, stop)
    ranges.append(range(at, len(whole)))
    return [found for found in ranges if len(found)]


def mutate(base: Base, rng: random.Random) -> bytes:
    """Return a damaged copy: of the bytes, or sound bytes of damaged tables, or both."""
    data = bytearray(base.data)
    if rng.random() < SHARE_OF_TABLES:
        root = base.root
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            root = _change(root, rng)
        try:
            data = encode_tables(root, len(base.data))
        except ModelError:
            return b""
        if rng.random() < 0.8:
            return bytes(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5, 10, 40))):
        if not data:
            break
        _mutate_once(data, base, rng)
    return bytes(data)


def _change(value: Any, rng: random.Random) -> Any:
    """Return a value with something inside it changed, mostly deep inside."""
    if isinstance(value, Options):
        if not value.fields:
            return value
        names = list(value.fields)
        if value.table == "Model" and rng.random() < 0.98:
            names = [name for name in names if name != "version"] or names  # it hides every other fault
        name = rng.choice(names)
        fields = dict(value.fields)
        if rng.random() < 0.03:
            del fields[name]
        elif name != "data":
            fields[name] = _change(fields[name], rng)
        return Options(value.table, fields)
    if isinstance(value, tuple):
        if not value:
            return value
        at = rng.randrange(len(value))
        how = rng.random()
        if how < 0.05:
            return value[:at] + value[at + 1 :]
        if how < 0.1:
            return (*value, value[at])
        return (*value[:at], _change(value[at], rng), *value[at + 1 :])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((value + 1, value - 1, 0, -1, 1, 2, 127, rng.randrange(64), 1 << rng.randrange(31)))
    if isinstance(value, float):
        return rng.choice((0.0, -1.0, float("nan"), float("inf")))
    if isinstance(value, str):
        return rng.choice(("", "x", value * 2, "\udc80"))
    return value


def _place(data: bytearray, base: Base, rng: random.Random) -> int:
    if rng.random() < SHARE_IN_TABLES:
        ranges = base.tables
        chosen = rng.choices(ranges, weights=[len(found) for found in ranges])[0]
        return min(rng.choice(chosen), len(data) - 1)
    return rng.randrange(len(data))


def _mutate_once(data: bytearray, base: Base, rng: random.Random) -> None:
    at = _place(data, base, rng)
    kind = rng.choice((0, 1, 1, 2, 2, 3, 4, 4, 4, 5, 5, 6, 7, 8, 9, 9))
    if kind == 0:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        data[at] = rng.randrange(256)
    elif kind == 2:
        _put(data, at & ~3, rng.choice(INTERESTING) & 0xFFFFFFFF)
    elif kind == 3:
        _put(data, at & ~3, rng.randrange(1 << 32))
    elif kind == 4:  # a small change of an offset or a number
        position = at & ~3
        if position + 4 <= len(data):
            value = struct.unpack_from("<I", data, position)[0]
            _put(data, position, (value + rng.randrange(-64, 65)) & 0xFFFFFFFF)
    elif kind == 5:  # the same bytes somewhere else: offsets that lead to other tables
        size = rng.choice((2, 4, 8, 16, 64, 256))
        source = _place(data, base, rng)
        data[at : at + size] = data[source : source + size]
    elif kind == 6:
        del data[at : at + rng.choice((1, 2, 4, 16, 300))]
    elif kind == 7:
        data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 16, 300)))
    elif kind == 8:
        del data[at:]
    elif len(data) >= 2:
        struct.pack_into("<H", data, min(at & ~1, len(data) - 2), rng.randrange(1 << 16))


def _put(data: bytearray, at: int, value: int) -> None:
    if at + 4 <= len(data):
        struct.pack_into("<I", data, at, value)


def try_file(data: bytes) -> None:
    """Do with a file what the product does."""
    file = model_from_bytes(data)
    graph = build_graph(file)
    encode(file.model)
    positions = possible_cuts(graph)
    if positions:
        middle = positions[len(positions) // 2]
        split(file, graph, stages_at(graph, [middle]))


def run_seed(bases: list[Base], seed: int, tally: Tally) -> None:
    """Make one damaged file and note what the reader does with it."""
    rng = random.Random(seed)
    base = rng.choice(bases)
    data = mutate(base, rng)
    limit = _virtual_bytes() + MAX_FILE_FACTOR * len(data) + MAX_EXTRA_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    start = time.perf_counter()
    try:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
        try_file(data)
        tally.outcomes["works"] += 1
    except (ModelError, CutError) as error:
        tally.outcomes[type(error).__name__] += 1
        tally.reasons[_kind(str(error))] += 1
    except BaseException as error:  # everything else is a finding
        if isinstance(error, KeyboardInterrupt):
            raise
        tally.outcomes["failure"] += 1
        tally.failures.append(f"seed {seed} ({base.name}): {type(error).__name__}: {error}"[:300])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    took = time.perf_counter() - start
    if took > tally.slowest_s:
        tally.slowest_s, tally.slowest_seed = took, seed


def _kind(message: str) -> str:
    text = message.partition(": ")[2]
    return re.sub(r"\d+", "#", text.rpartition(": ")[2])[:70]


def _virtual_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _too_slow(*_: object) -> None:
    raise TooSlowError(f"more than {MAX_SECONDS} s")


def run(bases: list[Base], seeds: range) -> Tally:
    """Try all seeds in this process."""
    signal.signal(signal.SIGALRM, _too_slow)
    tally = Tally()
    for seed in seeds:
        run_seed(bases, seed, tally)
    return tally


def main() -> None:
    """Run the seeds in several processes and sum up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of sound .tflite files")
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--max-file-bytes", type=int, default=600_000)
    parser.add_argument("--only", type=int, help="run one seed, with the traceback")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only is not None:
        rng = random.Random(args.only)
        try_file(mutate(rng.choice(load_bases(args.models, args.max_file_bytes)), rng))
        return
    if args.worker:
        tally = run(load_bases(args.models, args.max_file_bytes), range(args.first, args.first + args.n))
        json.dump(vars(tally), sys.stdout)
        return
    start = time.perf_counter()
    share = -(-args.n // args.jobs)
    command = [sys.executable, __file__, "--worker", "--models", str(args.models)]
    command += ["--max-file-bytes", str(args.max_file_bytes)]
    children = [
        subprocess.Popen(
            [*command, "--first", str(first), "--n", str(min(share, args.first + args.n - first))],
            stdout=subprocess.PIPE,
        )
        for first in range(args.first, args.first + args.n, share)
    ]
    total = Tally()
    for child in children:
        output = child.communicate()[0]
        if child.returncode:
            total.failures.append(f"a worker died with exit code {child.returncode}")
            continue
        part = json.loads(output)
        total.outcomes.update(part["outcomes"])
        total.reasons.update(part["reasons"])
        total.failures += part["failures"]
        if part["slowest_s"] > total.slowest_s:
            total.slowest_s, total.slowest_seed = part["slowest_s"], part["slowest_seed"]
    print(f"{args.n} files in {time.perf_counter() - start:.0f} s: {dict(total.outcomes)}")
    print(f"slowest: seed {total.slowest_seed}, {total.slowest_s:.2f} s")
    print("reasons:", *(f"{n:7} {text}" for text, n in total.reasons.most_common(25)), sep="\n  ")
    print(f"{len(total.failures)} failures", *total.failures[:40], sep="\n  ")
    sys.exit(1 if total.failures else 0)


if __name__ == "__main__":
    main()
