"""Numbers with units, as text for people.  Inside the product: integer ns, bytes, Hz."""

from __future__ import annotations

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000


def format_ns(value_ns: float) -> str:
    """Write a time with three significant digits, for example ``4.95 ms``."""
    for limit, divisor, unit in ((1e3, 1, "ns"), (1e6, 1e3, "us"), (1e9, 1e6, "ms")):
        if abs(value_ns) < limit:
            return f"{value_ns / divisor:.3g} {unit}"
    return f"{value_ns / 1e9:.3g} s"


def format_bytes(value_bytes: float) -> str:
    """Write a size with binary prefixes, for example ``3.4 MiB``."""
    value = float(value_bytes)
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def format_count(value: float) -> str:
    """Write a count with decimal prefixes, for example ``300 M``."""
    for unit in ("", " K", " M", " G"):
        if abs(value) < 1000:
            return f"{value:.0f}" if unit == "" else f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g} T"


def format_hz(value_hz: float) -> str:
    """Write a rate in frames per second with sensible digits."""
    if value_hz >= 100:
        return f"{value_hz:.0f}"
    return f"{value_hz:.3g}"
