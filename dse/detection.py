"""Which cores this process may use, and which of them are alike: the machine as a platform.

Everything comes from the affinity mask of the process and from the kernel's ``/sys`` tree, never
from a core count: a container, a batch system or ``taskset`` may have taken cores away.
"""

from __future__ import annotations

import math
import os
import platform as host
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dse.errors import PlatformError
from dse.files import read_int, read_text
from dse.platforms import Cluster, Platform

CPU_ROOT = Path("/sys/devices/system/cpu")
CGROUP_ROOT = Path("/sys/fs/cgroup")
SELF_CGROUP = Path("/proc/self/cgroup")
# Cores of one kind may differ a little in their highest clock (binning, "favoured" cores).
SAME_SPEED = 1.05
FEW_THREADS = 4


@dataclass(frozen=True, slots=True)
class Core:
    """What the kernel says about one core; None where it says nothing.

    Parameters
    ----------
    number
        In the kernel's counting.
    capacity
        ``cpu_capacity``: 1024 is the fastest core of the machine.
    max_hz
        ``cpufreq/cpuinfo_max_freq``.
    design
        Identification of the core's design (``midr_el1`` without its revision, on Arm).
    l2
        Size text and number of sharers of the level-2 cache: tells designs apart where neither
        capacity nor clock is known.
    last_cache
        Cores that share its last-level cache (including itself).
    siblings
        Hardware threads of the same physical core (including itself).
    """

    number: int
    capacity: int | None = None
    max_hz: int | None = None
    design: int | None = None
    l2: tuple[str, int] | None = None
    last_cache: tuple[int, ...] = ()
    siblings: tuple[int, ...] = ()


def detect_platform(
    root: Path = CPU_ROOT,
    *,
    allowed: Collection[int] | None = None,
    quota_cores: float | None = None,
) -> Platform:
    """Describe the machine that this process runs on.

    Parameters
    ----------
    root
        The kernel's folder of cores.
    allowed
        Core numbers that may be used; by default the affinity mask of this process.
    quota_cores
        CPU time that a control group grants, in cores; by default what ``cpu_quota`` finds when
        ``root`` is the real tree.

    Returns
    -------
    Platform
        Clusters from slow to fast; one is named ``cpu``, two ``LITTLE`` and ``big``, three
        ``LITTLE``, ``big`` and ``prime``.  Core numbers stand in the order in which they should be
        used: neighbours share a cache, second hardware threads of a physical core come last.

    Raises
    ------
    PlatformError
        No core may be used.
    """
    numbers = sorted(os.sched_getaffinity(0) if allowed is None else set(allowed))
    if not numbers:
        raise PlatformError("expected at least one core in the affinity mask, got none; check taskset/cpuset")
    if quota_cores is None and root == CPU_ROOT:
        quota_cores = cpu_quota()
    cores = [read_core(root, number) for number in numbers]
    groups = group_cores(cores)
    notes: list[str] = []
    if quota_cores is not None and math.ceil(quota_cores) < len(cores):
        notes.append(
            f"a control group grants the CPU time of {quota_cores:g} of {len(cores)} cores:"
            " more busy threads than that are stopped by the kernel for part of every period"
        )
        if len(groups) == 1:
            groups = [groups[0][: max(1, math.ceil(quota_cores))]]
            notes.append(f"only {len(groups[0])} cores are used because of that")
    used = {core.number for group in groups for core in group}
    shared = sorted(
        {core.siblings for group in groups for core in group if len(used & set(core.siblings)) > 1}
    )
    if shared:
        notes.append(
            "hardware threads of one physical core count as cores here and slow each other down: "
            + ", ".join("+".join(map(str, siblings)) for siblings in shared)
        )
    names = cluster_names(len(groups))
    return Platform(
        name=host.node() or "this machine",
        clusters=tuple(_cluster(name, group) for name, group in zip(names, groups, strict=True)),
        origin="detected",
        notes=tuple(notes),
    )


def group_cores(cores: Sequence[Core]) -> list[list[Core]]:
    """Put alike cores together, slowest group first.

    Cores are alike when design and level-2 cache are the same and both capacity and highest clock
    are within 5 % of the group's slowest core.  Where the kernel says nothing, nothing tells cores
    apart.  Different last-level caches alone do not part alike cores.
    """
    kinds: dict[tuple[int, str, int], list[Core]] = {}
    for core in cores:
        size, sharers = core.l2 or ("", 0)
        kinds.setdefault((core.design or 0, size, sharers), []).append(core)
    groups: list[list[Core]] = []
    for alike in kinds.values():
        start = len(groups)
        for core in sorted(alike, key=_speed):
            if len(groups) > start and _same_speed(groups[-1][0], core):
                groups[-1].append(core)
            else:
                groups.append([core])
    groups = _join_unless_faster(groups)
    groups.sort(key=lambda group: _speed(group[0]))
    return [sorted(group, key=_order_of_use) for group in groups]


def cluster_names(n_clusters: int) -> tuple[str, ...]:
    """Name clusters from slow to fast in the words people use."""
    known = {
        1: ("cpu",),
        2: ("LITTLE", "big"),
        3: ("LITTLE", "big", "prime"),
        4: ("LITTLE", "mid", "big", "prime"),
    }
    return known.get(n_clusters) or tuple(f"cluster{i}" for i in range(n_clusters))


def worthwhile_threads(n_cores: int) -> tuple[int, ...]:
    """Thread counts worth a slot: all up to four, then powers of two and all cores.

    Examples
    --------
    >>> worthwhile_threads(12)
    (1, 2, 3, 4, 8, 12)
    """
    powers = (1 << bit for bit in range(n_cores.bit_length()))
    return tuple(sorted({*range(1, min(n_cores, FEW_THREADS) + 1), *powers, n_cores}))


def read_core(root: Path, number: int) -> Core:
    """Read what the kernel says about one core; missing files give None, never an error."""
    folder = root / f"cpu{number}"
    khz = read_int(folder / "cpufreq" / "cpuinfo_max_freq")
    midr = read_text(folder / "regs" / "identification" / "midr_el1")
    l2: tuple[str, int] | None = None
    last_level = 0
    last_cache: tuple[int, ...] = ()
    for cache in sorted((folder / "cache").glob("index*")):
        level = read_int(cache / "level") or 0
        sharers = parse_core_list(read_text(cache / "shared_cpu_list") or "")
        if level == 2 and read_text(cache / "type") != "Instruction":
            l2 = (read_text(cache / "size") or "", len(sharers))
        if level > last_level:
            last_level, last_cache = level, sharers
    return Core(
        number,
        capacity=read_int(folder / "cpu_capacity"),
        max_hz=None if khz is None else khz * 1000,
        # Implementer, architecture and part number; variant and revision do not matter.
        design=None if midr is None else int(midr, 16) & 0xFF0FFFF0,
        l2=l2,
        last_cache=last_cache,
        siblings=parse_core_list(read_text(folder / "topology" / "thread_siblings_list") or ""),
    )


def parse_core_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list form.

    Raises
    ------
    PlatformError
        The text is not a list of numbers and ranges.

    Examples
    --------
    >>> parse_core_list("0-2,7")
    (0, 1, 2, 7)
    """
    numbers: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        try:
            low, high = int(first), int(last if dash else first)
        except ValueError:
            raise PlatformError(f"expected core numbers such as '0-3,7', got {text!r}") from None
        if low < 0 or high < low:
            raise PlatformError(f"expected ascending core numbers such as '0-3,7', got {text!r}")
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def format_core_list(numbers: Collection[int]) -> str:
    """Write core numbers in the kernel's list form, for example ``0-2,7``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def cpu_quota(cgroups: Path = CGROUP_ROOT, membership: Path = SELF_CGROUP) -> float | None:
    """Return the CPU time that control groups grant this process, in cores, or None for no limit.

    The tightest limit of the group and of all groups above it counts (version 2 ``cpu.max``,
    version 1 ``cpu.cfs_quota_us``).
    """
    limits: list[float] = []
    for line in (read_text(membership) or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers == "":
            bases = (cgroups, cgroups / "unified")
        elif "cpu" in controllers.split(","):
            bases = (cgroups / controllers, cgroups / "cpu")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        for base in bases:
            for depth in range(len(parts) + 1):
                limits.extend(_group_limit(base.joinpath(*parts[:depth])))
    return min(limits, default=None)


def _group_limit(folder: Path) -> list[float]:
    quota, period = (*(read_text(folder / "cpu.max") or "max").split(), "100000")[:2]
    if quota == "max":
        quota = read_text(folder / "cpu.cfs_quota_us") or "-1"
        period = read_text(folder / "cpu.cfs_period_us") or "100000"
    try:
        return [int(quota) / int(period)] if int(quota) > 0 and int(period) > 0 else []
    except ValueError:
        return []


def _join_unless_faster(groups: list[list[Core]]) -> list[list[Core]]:
    """Undo a parting that only the sharing of level-2 caches made and that the speed denies.

    A cpuset may take one of two cores that share a level-2 cache, and virtual machines report
    caches at will: with known, equal speeds and designs, cores are alike.
    """
    joined: list[list[Core]] = []
    for group in groups:
        for other in joined:
            known = other[0].capacity is not None or other[0].max_hz is not None
            if known and other[0].design == group[0].design and _same_speed(other[0], group[0]):
                other.extend(group)
                break
        else:
            joined.append(list(group))
    return joined


def _speed(core: Core) -> tuple[int, int, int]:
    return (core.capacity or 0, core.max_hz or 0, core.number)


def _same_speed(slower: Core, core: Core) -> bool:
    pairs = ((slower.capacity, core.capacity), (slower.max_hz, core.max_hz))
    return all((a or 0) * SAME_SPEED >= (b or 0) and (b or 0) * SAME_SPEED >= (a or 0) for a, b in pairs)


def _order_of_use(core: Core) -> tuple[int, tuple[int, ...], int]:
    rank = core.siblings.index(core.number) if core.number in core.siblings else 0
    return (rank, core.last_cache, core.number)


def _cluster(name: str, cores: Sequence[Core]) -> Cluster:
    threads = worthwhile_threads(len(cores))
    clocks = [core.max_hz for core in cores if core.max_hz is not None]
    return Cluster(
        name=name,
        core_ids=tuple(core.number for core in cores),
        capacity=cores[0].capacity,
        max_hz=max(clocks, default=None),
        threads=() if len(threads) == len(cores) else threads,
    )
