"""The state of the machine while something is measured: clocks, temperature, governor, load.

Numbers without these can not be compared: a ranking at minute one may differ from minute thirty.
Everything is read from ``/sys`` and ``/proc``; what the kernel does not tell is None or empty.
"""

from __future__ import annotations

import os
import platform as host
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dse.detection import CGROUP_ROOT, CPU_ROOT, cpu_quota
from dse.files import read_int, read_text

PROC = Path("/proc")
THERMAL_ROOT = Path("/sys/class/thermal")
CLOCK_MOVED = 0.05
HOT_MILLICELSIUS = 80_000
WARMER_MILLICELSIUS = 10_000
MUCH_STEAL = 0.02
MUCH_FOREIGN_LOAD = 0.10


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """Clock ticks that one core has spent since the machine started."""

    busy: int
    idle: int
    steal: int


@dataclass(frozen=True, slots=True)
class Conditions:
    """A snapshot.

    Parameters
    ----------
    clock_hz, governor
        By core; only where the kernel tells.
    temperature_millicelsius
        By the type of the thermal zone; the hottest zone of a type.
    core_times
        By core, from ``/proc/stat``; two snapshots give shares.
    load_1min
        Load average, or None.
    available_bytes
        Memory that can be used without swapping, or None.
    quota_cores
        CPU time that control groups grant, in cores, or None for no limit.
    n_throttled
        How often the control group stopped this process for its quota, or None.
    """

    clock_hz: dict[int, int]
    governor: dict[int, str]
    temperature_millicelsius: dict[str, int]
    core_times: dict[int, CoreTimes]
    load_1min: float | None
    available_bytes: int | None
    quota_cores: float | None
    n_throttled: int | None

    def to_json(self) -> dict[str, Any]:
        """Return what is worth keeping beside a measurement."""
        return {
            "clock_hz": {str(core): hz for core, hz in self.clock_hz.items()},
            "governor": sorted(set(self.governor.values())),
            "temperature_millicelsius": dict(self.temperature_millicelsius),
            "load_1min": self.load_1min,
            "available_bytes": self.available_bytes,
            "quota_cores": self.quota_cores,
        }


@dataclass(frozen=True, slots=True)
class Drift:
    """What changed between two snapshots.

    Parameters
    ----------
    steal_share
        Share of the time of the cores that a hypervisor gave to others.
    busy_share
        Share of the time of the cores in which they worked (for whomever).
    warnings
        What makes measurements of that time doubtful, in words.
    """

    steal_share: float
    busy_share: float
    warnings: tuple[str, ...]


def snapshot(
    cores: Collection[int] | None = None,
    *,
    cpu_root: Path = CPU_ROOT,
    proc: Path = PROC,
    thermal_root: Path = THERMAL_ROOT,
) -> Conditions:
    """Read the state of the machine.

    Parameters
    ----------
    cores
        Cores that matter; by default those that this process may use.
    cpu_root, proc, thermal_root
        Where the kernel tells it.
    """
    numbers = sorted(os.sched_getaffinity(0) if cores is None else cores)
    governors = {core: read_text(cpu_root / f"cpu{core}/cpufreq/scaling_governor") for core in numbers}
    load = (read_text(proc / "loadavg") or "").split()
    return Conditions(
        clock_hz=read_clocks(numbers, cpu_root=cpu_root),
        governor={core: name for core, name in governors.items() if name is not None},
        temperature_millicelsius=_temperatures(thermal_root),
        core_times={k: v for k, v in _core_times(proc / "stat").items() if k in numbers},
        load_1min=float(load[0]) if load else None,
        available_bytes=_available(proc / "meminfo"),
        quota_cores=cpu_quota() if cpu_root == CPU_ROOT else None,
        n_throttled=_throttled() if cpu_root == CPU_ROOT else None,
    )


def read_clocks(cores: Collection[int], *, cpu_root: Path = CPU_ROOT) -> dict[int, int]:
    """Return the present clock in hertz by core, where the kernel tells it.

    Compare only clocks of cores that work: governors slow idle ones down.
    """
    found = {core: read_int(cpu_root / f"cpu{core}/cpufreq/scaling_cur_freq") for core in cores}
    return {core: khz * 1000 for core, khz in found.items() if khz is not None}


def drift(before: Conditions, after: Conditions, *, own_busy_s: float | None = None) -> Drift:
    """Compare two snapshots.

    Parameters
    ----------
    before, after
        Snapshots of the same cores.
    own_busy_s
        CPU time that the measurement itself used between them; more than that is the load of others.
    """
    spent = [_spent(before.core_times[core], after.core_times[core]) for core in _common(before, after)]
    total = sum(s.busy + s.idle + s.steal for s in spent)
    steal_share = sum(s.steal for s in spent) / total if total else 0.0
    busy_share = sum(s.busy for s in spent) / total if total else 0.0
    found: list[str] = []
    if steal_share > MUCH_STEAL:
        found.append(f"the hypervisor gave {steal_share:.0%} of the time to others")
    if own_busy_s is not None and total:
        foreign = busy_share - own_busy_s * os.sysconf("SC_CLK_TCK") / total
        if foreign > MUCH_FOREIGN_LOAD:
            found.append(f"other programs kept the cores busy for {foreign:.0%} of the time")
    for core, hz in before.clock_hz.items():
        now = after.clock_hz.get(core, hz)
        if abs(now - hz) > CLOCK_MOVED * hz:
            found.append(f"the clock of core {core} moved from {hz / 1e6:.0f} to {now / 1e6:.0f} MHz")
    for zone, value in after.temperature_millicelsius.items():
        earlier = before.temperature_millicelsius.get(zone, value)
        if value >= HOT_MILLICELSIUS or value - earlier >= WARMER_MILLICELSIUS:
            found.append(f"{zone} went from {earlier / 1000:.0f} to {value / 1000:.0f} degrees Celsius")
    if before.n_throttled is not None and (after.n_throttled or 0) > before.n_throttled:
        n = (after.n_throttled or 0) - before.n_throttled
        found.append(f"the control group's CPU quota stopped the processes {n} times")
    return Drift(steal_share, busy_share, tuple(found))


def cpu_model(proc: Path = PROC) -> str:
    """Return what the kernel calls this kind of CPU; part of a cache key, so never empty."""
    wanted = ("model name", "Hardware", "CPU part", "Model")
    found: dict[str, str] = {}
    for line in (read_text(proc / "cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    parts = [found[name] for name in wanted if name in found]
    return " / ".join(parts) or host.processor() or host.machine()


def machine() -> dict[str, str]:
    """Return what does not change while this machine runs: CPU, kernel, system."""
    return {
        "cpu": cpu_model(),
        "architecture": host.machine(),
        "kernel": host.release(),
        "system": host.system(),
    }


def _common(before: Conditions, after: Conditions) -> list[int]:
    return sorted(before.core_times.keys() & after.core_times.keys())


def _spent(before: CoreTimes, after: CoreTimes) -> CoreTimes:
    return CoreTimes(after.busy - before.busy, after.idle - before.idle, after.steal - before.steal)


def _core_times(stat: Path) -> dict[int, CoreTimes]:
    times: dict[int, CoreTimes] = {}
    for line in (read_text(stat) or "").splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and len(fields) >= 8:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
            times[int(name[3:])] = CoreTimes(user + nice + system + irq + softirq, idle + iowait, steal)
    return times


def _temperatures(root: Path) -> dict[str, int]:
    hottest: dict[str, int] = {}
    for zone in sorted(root.glob("thermal_zone*")):
        value = read_int(zone / "temp")
        if value is not None:
            name = read_text(zone / "type") or zone.name
            hottest[name] = max(value, hottest.get(name, value))
    return hottest


def _available(meminfo: Path) -> int | None:
    for line in (read_text(meminfo) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _throttled() -> int | None:
    for path in (CGROUP_ROOT / "cpu.stat", CGROUP_ROOT / "cpu/cpu.stat"):
        for line in (read_text(path) or "").splitlines():
            name, _, value = line.partition(" ")
            if name == "nr_throttled":
                return int(value)
    return None
