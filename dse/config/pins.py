"""Pins: the user's wishes which layers run where, from their short text forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dse.platforms import Kernels, split_kernels

MAX_NUMBERS = 4096

_PART = re.compile(r"\s*(\d{1,6})(?:\s*-\s*(\d{1,6}))?\s*")
_SLOT = re.compile(r"(?:(\d{1,4})\s+)?(\S.*)")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
REST = "rest"


@dataclass(frozen=True, slots=True)
class Pin:
    """Layers that must run in one stage on named cores.

    Parameters
    ----------
    layers
        Indices, ranges (``0-16``), names or globs, as written; empty when ``rest``.
    cluster
        Name of the cluster, or None when ``cores`` says it.
    threads
        Cores of the cluster, or None for any number.
    kernels
        Kernel library of the slot, or None for any.
    cores
        Core numbers, or empty for any cores of the cluster.
    rest
        All layers that no other pin names.
    where
        Place of the pin in the user's file, for messages.
    """

    layers: tuple[str | int, ...]
    cluster: str | None = None
    threads: int | None = None
    kernels: Kernels | None = None
    cores: tuple[int, ...] = ()
    rest: bool = False
    where: str = ""


class PinError(Exception):
    """A pin can not be read: which field, what was expected, what came."""

    def __init__(self, field: str, expected: str, got: Any) -> None:
        self.field, self.expected, self.got = field, expected, got
        super().__init__(f"{field}: expected {expected}, got {got!r}")


def parse_numbers(value: Any, field: str = "") -> tuple[int, ...]:
    """Read numbers from ``2``, ``"0-3"``, ``"0-1, 4"`` or a list of whole numbers.

    Raises
    ------
    PinError
        Something else, a range that runs down, a number twice, or too many.
    """
    form = "numbers such as 2, 0-3 or [0, 1]"
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, str):
        numbers: list[int] = []
        for part in value.split(","):
            found = _PART.fullmatch(part)
            if not found:
                raise PinError(field, form, value)
            low, high = int(found[1]), int(found[2] or found[1])
            if high < low:
                raise PinError(field, "a range that runs up", value)
            if high - low >= MAX_NUMBERS:
                raise PinError(field, f"at most {MAX_NUMBERS} numbers", value)
            numbers += range(low, high + 1)
    elif isinstance(value, Sequence):
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in value):
            raise PinError(field, form, value)
        numbers = list(value)
    else:
        raise PinError(field, form, value)
    if len(set(numbers)) != len(numbers):
        raise PinError(field, "each number once", value)
    return tuple(numbers)


def expand(
    layers: Sequence[str | int],
    on: str | None,
    cores: int | str | Sequence[int] | None,
    each: Mapping[str, int | str | Sequence[int]] | None = None,
    where: str = "",
) -> tuple[Pin, ...]:
    """Read one pin of a file; with ``each`` it stands for several.

    Examples
    --------
    >>> for pin in expand(["encoder/layer_{i}/*"], None, "{i}", {"i": "0-1"}):
    ...     print(pin.layers, pin.cores)
    ('encoder/layer_0/*',) (0,)
    ('encoder/layer_1/*',) (1,)

    Raises
    ------
    PinError
        Neither or both of ``on`` and ``cores``, a text of another form, a placeholder without
        ``each``, or an ``each`` that nothing uses.
    """
    if (on is None) == (cores is None):
        raise PinError("", "one of 'on' (for example '3 big') and 'cores'", "both" if on else "neither")
    if each is None:
        return (_pin(layers, on, cores, {}, where),)
    if len(each) != 1:
        raise PinError("each", "one name with its numbers, for example {i: 0-3}", dict(each))
    ((name, values),) = each.items()
    texts = [*layers, on, cores]
    if not any(isinstance(text, str) and f"{{{name}}}" in text for text in texts):
        raise PinError("each", f"{{{name}}} somewhere in layers, on or cores", dict(each))
    return tuple(_pin(layers, on, cores, {name: number}, where) for number in parse_numbers(values, "each"))


def _pin(
    layers: Sequence[str | int],
    on: str | None,
    cores: int | str | Sequence[int] | None,
    values: Mapping[str, int],
    where: str,
) -> Pin:
    filled = tuple(
        _fill(layer, values, "layers").strip() if isinstance(layer, str) else layer for layer in layers
    )
    rest = filled == (REST,)
    for layer in filled:
        if layer == "" or (isinstance(layer, int) and layer < 0) or (layer == REST and not rest):
            raise PinError("layers", f"numbers from 0, names or globs, or '{REST}' alone", layer)
    if cores is not None:
        numbers = parse_numbers(_fill(cores, values, "cores") if isinstance(cores, str) else cores, "cores")
        if not numbers:
            raise PinError("cores", "at least one core", cores)
        return Pin(() if rest else filled, cores=numbers, rest=rest, where=where)
    text = _fill(on or "", values, "on").strip()
    found = _SLOT.fullmatch(text)
    if not found or text.isdigit() or found[1] == "0":
        raise PinError("on", "cores of a cluster, for example '3 big' or 'big'", on)
    threads = int(found[1]) if found[1] else None
    cluster, kernels = split_kernels(found[2])
    return Pin(() if rest else filled, cluster, threads, kernels, rest=rest, where=where)


def _fill(text: str, values: Mapping[str, int], field: str) -> str:
    """Replace ``{i}`` by its number; other braces in layer names stay as they are."""

    def number(found: re.Match[str]) -> str:
        if found[1] not in values:
            if field == "layers":
                return found[0]
            raise PinError(field, f"'each' to say what {found[0]} is", text)
        return str(values[found[1]])

    return _PLACEHOLDER.sub(number, text)
