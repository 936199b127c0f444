"""Reading flatbuffer tables from bytes that nobody has checked.

Every offset, vtable, length and union type is checked before it is used, in the manner of the
FlatBuffers verifier (https://flatbuffers.dev/internals/), which the Python library lacks.  What is
built is bounded: a small file that points many times at one table can not make large output.
"""

from __future__ import annotations

import struct
import sys
from typing import Any, NoReturn

from dse.errors import ModelError
from dse.flatbuffer.records import Options
from dse.flatbuffer.schema import SCALARS, Field, Table, Type, schema

# Fields whose bytes always stay a view into the file, and tables whose long vectors do.
_VIEWS = frozenset({("Buffer", "data"), ("Operator", "custom_options")})
_LONG_VIEWS = frozenset({"QuantizationParameters", "Int32Vector", "Uint16Vector", "Uint8Vector"})
LONG_VECTOR = 4096
MAX_DEPTH = 32
# Work units; a table is worth TABLE_COST, an element of a short vector one.
_TABLE_COST = 12
_BASE_BUDGET = 2_500_000
_VIEW_BYTES_PER_UNIT = 64
UNKNOWN_PREFIX = "?"

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_VTABLE_HEAD = struct.Struct("<HH")
_STRUCTS = {name: struct.Struct("<" + code) for name, (code, _) in SCALARS.items()}


class TableReader:
    """Reads tables of the schema from a buffer.

    Parameters
    ----------
    data
        The whole file.
    source
        Its name, for messages.

    Attributes
    ----------
    unknown
        Fields and union types that the schema does not have, for example ``Tensor slot 11``.
    """

    def __init__(self, data: memoryview, source: str) -> None:
        self.unknown: dict[str, None] = {}
        self._data = data
        self._end = len(data)
        self._source = source
        self._path: list[str] = []
        self._budget = _BASE_BUDGET + len(data) // 16
        self._vtables: dict[tuple[int, str], list[tuple[Field, int, int]]] = {}

    def read_root(self, table: str, identifier: bytes) -> Options:
        """Read the root table.

        Raises
        ------
        ModelError
            The bytes are not a sound flatbuffer of this kind.
        """
        self._path = [table]
        if self._end < 8:
            self._fail(0, f"expected a flatbuffer of at least 8 bytes, got {self._end}")
        found = bytes(self._data[4:8])
        if found != identifier:
            self._fail(4, f"expected the file identifier {identifier!r}, got {found!r}")
        return self._table(_U32.unpack_from(self._data, 0)[0], schema().tables[table])

    def _fail(self, position: int, why: str) -> NoReturn:
        raise ModelError(f"{self._source}: damaged at byte {position}, {'.'.join(self._path)}: {why}")

    def _spend(self, units: int, position: int) -> None:
        self._budget -= units
        if self._budget < 0:
            self._fail(position, "more tables and numbers than a file of this size can sensibly hold")

    def _need(self, position: int, size: int, what: str) -> None:
        if position < 0 or position + size > self._end:
            self._fail(
                position, f"{what} of {size} bytes would end beyond the file, which has {self._end} bytes"
            )

    def _table(self, position: int, table: Table) -> Options:
        self._spend(_TABLE_COST, position)
        if len(self._path) > MAX_DEPTH:
            self._fail(position, f"tables are nested deeper than {MAX_DEPTH}")
        self._need(position, 4, "a table")
        vtable = position - _I32.unpack_from(self._data, position)[0]
        present = self._vtables.get((vtable, table.name))
        if present is None:
            present = self._vtable(vtable, table)
        fields: dict[str, Any] = {}
        for field, entry, type_entry in present:
            self._path.append(field.name)
            value = self._field(table.name, position, field, entry, type_entry)
            self._path.pop()
            if value is not None:
                fields[field.name] = value
        return Options(table.name, fields)

    def _vtable(self, vtable: int, table: Table) -> list[tuple[Field, int, int]]:
        """Return the present fields with their places in the table (union: of value and type)."""
        self._need(vtable, 4, "a vtable")
        size = _VTABLE_HEAD.unpack_from(self._data, vtable)[0]
        if size < 4 or size % 2:
            self._fail(vtable, f"a vtable's size must be even and at least 4, got {size}")
        self._need(vtable, size, "a vtable")
        entries = struct.unpack_from(f"<{size // 2 - 2}H", self._data, vtable + 4)
        self._spend(len(entries), vtable)
        present: list[tuple[Field, int, int]] = []
        for field in table.fields:
            entry = entries[field.slot] if field.slot < len(entries) else 0
            if field.type.kind == "union":
                value = entries[field.slot + 1] if field.slot + 1 < len(entries) else 0
                if entry and value:
                    present.append((field, value, entry))
            elif entry:
                present.append((field, entry, 0))
        for slot in range(table.n_slots, len(entries)):
            if entries[slot]:
                name = f"{UNKNOWN_PREFIX}slot {slot}"
                self.unknown[f"{table.name} {name[1:]}"] = None
                present.append((Field(name, slot, Type("scalar", UNKNOWN_PREFIX)), entries[slot], 0))
                break
        self._vtables[vtable, table.name] = present
        return present

    def _field(self, table: str, table_position: int, field: Field, entry: int, type_entry: int) -> Any:
        kind = field.type
        position = table_position + entry
        if kind.kind == "scalar":
            if kind.name == UNKNOWN_PREFIX:
                return True
            unpack = _STRUCTS[kind.name]
            self._need(position, unpack.size, "a number")
            return unpack.unpack_from(self._data, position)[0]
        if kind.kind == "union":
            self._need(table_position + type_entry, 1, "a union type")
            number = self._data[table_position + type_entry]
            if number == 0:
                return None
            members = schema().unions[kind.name]
            if number > len(members):
                self.unknown[f"{kind.name} type {number}"] = None
                return Options(f"{UNKNOWN_PREFIX}{kind.name} type {number}", {})
            return self._table(self._follow(position), schema().tables[members[number - 1]])
        target = self._follow(position)
        if kind.kind == "table":
            return self._table(target, schema().tables[kind.name])
        if kind.kind == "string":
            return self._string(target)
        always = (table, field.name) in _VIEWS
        return self._vector(
            target, kind, view_above=0 if always else LONG_VECTOR if table in _LONG_VIEWS else None
        )

    def _follow(self, position: int) -> int:
        self._need(position, 4, "an offset")
        distance: int = _U32.unpack_from(self._data, position)[0]
        if distance == 0:
            self._fail(position, "an offset is 0, so the value would be the offset itself")
        return position + distance

    def _string(self, position: int) -> str:
        self._need(position, 4, "a string length")
        size: int = _U32.unpack_from(self._data, position)[0]
        self._need(position + 4, size + 1, "a string with its closing zero")
        if self._data[position + 4 + size]:
            self._fail(position + 4 + size, "a string does not end with a zero byte")
        self._spend(size // 16, position)
        # surrogateescape: names that are not UTF-8 survive bit for bit.
        return bytes(self._data[position + 4 : position + 4 + size]).decode("utf-8", "surrogateescape")

    def _vector(self, position: int, kind: Type, *, view_above: int | None) -> Any:
        element = kind.element
        assert element is not None  # noqa: S101 - the schema's parser gives every vector an element
        self._need(position, 4, "a vector length")
        length: int = _U32.unpack_from(self._data, position)[0]
        start = position + 4
        if element.kind == "scalar":
            code, size = SCALARS[element.name]
            self._need(start, length * size, f"a vector of {length} numbers")
            view = self._data[start : start + length * size]
            if view_above is not None and length >= view_above and sys.byteorder == "little":
                # Not free: what is shared a thousand times would be hashed and written a thousand times.
                self._spend(length * size // _VIEW_BYTES_PER_UNIT, start)
                return view if code == "B" else view.cast(code)  # type: ignore[call-overload]
            if code == "B":
                self._spend(length // 16, start)
                return bytes(view)
            self._spend(length, start)
            return struct.unpack(f"<{length}{code}", view)
        self._need(start, length * 4, f"a vector of {length} offsets")
        self._spend(length, position)
        members = schema().tables[element.name] if element.kind == "table" else None
        name = self._path[-1]
        values = []
        for index in range(length):
            self._path[-1] = f"{name}[{index}]"
            target = self._follow(start + 4 * index)
            values.append(self._table(target, members) if members else self._string(target))
        self._path[-1] = name
        return tuple(values)
