"""The facts of the TensorFlow Lite schema, read from ``schema.txt`` on first use.

The reader, the writer and the checks are all driven by these facts, so a table that the schema
gains needs one more line there and nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Kind = Literal["scalar", "string", "table", "union", "vector"]

# struct format and size of each scalar type.
SCALARS: dict[str, tuple[str, int]] = {
    "bool": ("?", 1),
    "u8": ("B", 1),
    "i8": ("b", 1),
    "u16": ("H", 2),
    "i16": ("h", 2),
    "u32": ("I", 4),
    "i32": ("i", 4),
    "u64": ("Q", 8),
    "i64": ("q", 8),
    "f32": ("f", 4),
}


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a field or of a vector's elements.

    Parameters
    ----------
    kind
        What it is.
    name
        Scalar type, or name of the table or union; ``""`` for strings and vectors.
    element
        Element type of a vector.
    """

    kind: Kind
    name: str = ""
    element: Type | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a table.

    Parameters
    ----------
    name
        As in the schema.
    slot
        Place in the vtable, from 0; for a union the place of its type, the value is one further.
    type
        What is stored.
    default
        Value of an absent scalar.
    enum
        Name of the enum that gives its values names, or None.
    """

    name: str
    slot: int
    type: Type
    default: int = 0
    enum: str | None = None


@dataclass(frozen=True)
class Table:
    """A table: its fields in slot order."""

    name: str
    fields: tuple[Field, ...]
    n_slots: int


@dataclass(frozen=True)
class Schema:
    """All tables, unions and enums by name."""

    tables: dict[str, Table]
    unions: dict[str, tuple[str, ...]]
    enums: dict[str, dict[int, str]]


@cache
def schema() -> Schema:
    """Return the schema's facts (parsed once per process, about 2 ms)."""
    text = resources.files(__package__).joinpath("schema.txt").read_text()
    entries: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            entries[-1] += line
        elif line and not line.startswith("#"):
            entries.append(line)
    enums: dict[str, dict[int, str]] = {}
    bases: dict[str, str] = {}
    unions: dict[str, tuple[str, ...]] = {}
    raw_tables: dict[str, list[str]] = {}
    for entry in entries:
        head, _, rest = entry.partition(":")
        what, name, *base = head.split()
        words = rest.split()
        if what == "enum":
            enums[name], bases[name] = _enum(words), base[0]
        elif what == "union":
            unions[name] = tuple(words)
        else:
            raw_tables[name] = words
    tables = {name: _table(name, words, bases, frozenset(raw_tables)) for name, words in raw_tables.items()}
    return Schema(tables, unions, enums)


def enum_name(enum: str, value: int) -> str | None:
    """Return the name of an enum's value, or None when the schema does not know it."""
    return schema().enums[enum].get(value)


@cache
def enum_value(enum: str, name: str) -> int:
    """Return the number of an enum's value by its name, for example ``("TensorType", "INT8")``.

    Raises
    ------
    KeyError
        No such value.
    """
    return {text: value for value, text in schema().enums[enum].items()}[name]


def builtin(name: str) -> int:
    """Return a builtin operator's number by its name, for example ``CONV_2D``."""
    return enum_value("BuiltinOperator", name)


def _enum(words: list[str]) -> dict[int, str]:
    values: dict[int, str] = {}
    number = 0
    for word in words:
        name, _, explicit = word.partition("=")
        number = int(explicit) if explicit else number
        values[number] = name
        number += 1
    return values


def _table(name: str, words: list[str], bases: dict[str, str], tables: frozenset[str]) -> Table:
    fields: list[Field] = []
    slot = 0
    for word in words:
        field_name, _, rest = word.partition(":")
        type_text, _, default = rest.partition("=")
        enum = type_text if type_text in bases else None
        kind = _type(type_text, bases, tables)
        fields.append(Field(field_name, slot, kind, int(default or 0), enum))
        slot += 2 if kind.kind == "union" else 1
    return Table(name, tuple(fields), slot)


def _type(text: str, bases: dict[str, str], tables: frozenset[str]) -> Type:
    if text.startswith("["):
        return Type("vector", element=_type(text[1:-1], bases, tables))
    if text.startswith("|"):
        return Type("union", text[1:])
    if text == "str":
        return Type("string")
    if text in tables:
        return Type("table", text)
    return Type("scalar", bases.get(text, text))
