"""From ``records.Model`` to the bytes of a .tflite file.

Only fields that are present are written, so what was read comes back bit for bit.  Constants are
aligned to 16 bytes *in the file*: some Arm kernels crash on less.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dse.errors import ModelError
from dse.flatbuffer.records import Buffer, Data, Model, Options
from dse.flatbuffer.schema import SCALARS, Field, Type, schema
from dse.flatbuffer.tables import UNKNOWN_PREFIX
from dse.flatbuffer.tabulate import model_tables

if TYPE_CHECKING:
    from flatbuffers import Builder

ALIGNMENT = 16
IDENTIFIER = b"TFL3"
# Offsets inside a flatbuffer are 31 bits; above this, constants go behind it.
_MAX_INSIDE_BYTES = (1 << 31) - (1 << 24)
_ALIGNMENTS = {("Buffer", "data"): ALIGNMENT, ("Operator", "custom_options"): ALIGNMENT}


def encode(model: Model, *, external: bool | None = None) -> bytearray:
    """Write a model.

    Parameters
    ----------
    model
        What to write; operator codes, shapes and quantisation are written as they are.
    external
        Store constants behind the flatbuffer instead of in it.  By default only when they do not
        fit inside (a flatbuffer ends at 2 GB).

    Returns
    -------
    bytearray
        The file.  Peak memory is about the size of the file.

    Raises
    ------
    ModelError
        The model has fields that the schema known here does not have, or values that do not fit
        their type.
    """
    tables = model_tables(model)
    n_data = sum(len(buffer.data) for buffer in model.buffers if buffer.data is not None)
    if external is None:
        external = n_data + _estimate(tables) > _MAX_INSIDE_BYTES
    if not external:
        return encode_tables(tables, n_data)
    return _with_data_behind(tables, model.buffers)


def _with_data_behind(tables: Options, buffers: Sequence[Buffer]) -> bytearray:
    """Write twice: the size of the flatbuffer does not depend on the offsets in it."""
    contents = [buffer.data for buffer in buffers if buffer.data]
    start = _aligned(len(encode_tables(_moved(tables, buffers, [(2, 1) for _ in contents]))))
    places = []
    for content in contents:
        places.append((start, len(content)))
        start = _aligned(start + len(content))
    head = encode_tables(_moved(tables, buffers, places))
    output = bytearray(places[-1][0] + places[-1][1] if places else len(head))
    output[: len(head)] = head
    for content, (offset, size) in zip(contents, places, strict=True):
        output[offset : offset + size] = content
    return output


def _moved(tables: Options, buffers: Sequence[Buffer], places: Sequence[tuple[int, int]]) -> Options:
    """Return the model's tables with (offset, size) instead of each buffer that has data."""
    remaining = iter(places)
    moved = tuple(
        Options("Buffer", dict(zip(("offset", "size"), next(remaining), strict=True)))
        if buffer.data
        else Options("Buffer", {})
        for buffer in buffers
    )
    return Options(tables.table, {**tables.fields, "buffers": moved or (Options("Buffer", {}),)})


def _aligned(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


def encode_tables(root: Options, n_data: int = 0) -> bytearray:
    """Write a tree of tables; in a model file the root is a ``Model``.

    Parameters
    ----------
    root
        The tables.
    n_data
        Bytes of all constants in it, so that memory is asked for only once.

    Raises
    ------
    ModelError
        A field is unknown or a value does not fit its type.
    """
    from flatbuffers import Builder

    # Growing would double the memory; untouched pages of a generous start cost nothing.
    estimate = n_data + (ALIGNMENT + 64) * (1 + len(root.get("buffers", ()))) + _estimate(root)
    builder = Builder(min(estimate + 4096, Builder.MAX_BUFFER_SIZE))
    builder.ForceDefaults(True)
    position = _TableWriter(builder).write(root)
    builder.Finish(position, file_identifier=IDENTIFIER)
    output: bytearray = builder.Bytes
    del output[: builder.Head()]  # moves the start, does not copy
    return output


def _estimate(value: Any) -> int:
    """Upper bound of the bytes of tables and vectors, leaving out constants (counted before)."""
    if isinstance(value, Options):
        own = 64 + 24 * len(value.fields)
        if value.table == "Buffer":
            return own
        return own + sum(_estimate(entry) for entry in value.fields.values())
    if isinstance(value, str):
        return 4 * len(value) + 16
    if isinstance(value, (bytes, bytearray, memoryview)):
        return memoryview(value).nbytes + 32
    if isinstance(value, (tuple, list)):
        if value and isinstance(value[0], (Options, str)):
            return 16 + sum(4 + _estimate(entry) for entry in value)
        return 8 * len(value) + 32
    return 8


class _TableWriter:
    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def write(self, options: Options) -> int:
        """Write a table after everything it refers to; return its offset from the end."""
        if options.table.startswith(UNKNOWN_PREFIX):
            raise ModelError(
                f"{options.table[1:]} is newer than the schema known here: it can not be written"
            )
        table = schema().tables[options.table]
        known = {field.name: field for field in table.fields}
        placed: list[tuple[int, str, Any]] = []
        for name, value in options.fields.items():
            field = known.get(name)
            if field is None:
                raise ModelError(
                    f"{table.name}: field {name.lstrip(UNKNOWN_PREFIX)!r} is newer than the schema known here"
                )
            placed += self._field(table.name, field, value)
        # Largest first, so that little padding is needed.
        placed.sort(key=lambda entry: -_width(entry[1]))
        builder = self._builder
        builder.StartObject(table.n_slots)
        for slot, code, value in placed:
            if code == "offset":
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
            else:
                self._scalar(table.name, slot, code, value)
        return int(builder.EndObject())

    def _scalar(self, table: str, slot: int, code: str, value: Any) -> None:
        form, size = SCALARS[code]
        try:
            raw = struct.pack("<" + form, value)
        except struct.error as error:
            raise ModelError(f"{table}: {value!r} in slot {slot} does not fit {code}: {error}") from None
        builder = self._builder
        builder.Prep(size, 0)
        builder.head -= size
        builder.Bytes[builder.head : builder.head + size] = raw
        builder.Slot(slot)

    def _field(self, table: str, field: Field, value: Any) -> list[tuple[int, str, Any]]:
        kind = field.type
        if kind.kind == "scalar":
            return [(field.slot, kind.name, value)]
        if kind.kind == "union":
            offset = self.write(value)
            members = schema().unions[kind.name]
            if value.table not in members:
                raise ModelError(f"{table}.{field.name}: {value.table} is not a member of {kind.name}")
            return [(field.slot, "u8", 1 + members.index(value.table)), (field.slot + 1, "offset", offset)]
        if kind.kind == "table":
            return [(field.slot, "offset", self.write(value))]
        if kind.kind == "string":
            return [(field.slot, "offset", self._string(value))]
        return [(field.slot, "offset", self._vector(table, field, value))]

    def _string(self, text: str) -> int:
        return int(self._builder.CreateString(text.encode("utf-8", "surrogateescape")))

    def _vector(self, table: str, field: Field, values: Any) -> int:
        element = field.type.element
        assert element is not None  # noqa: S101 - the schema's parser gives every vector an element
        if element.kind == "scalar":
            return self._numbers(table, field, element, values)
        offsets = [self.write(v) if element.kind == "table" else self._string(v) for v in values]
        builder = self._builder
        builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            builder.PrependUOffsetTRelative(offset)
        return int(builder.EndVector())

    def _numbers(self, table: str, field: Field, element: Type, values: Data | Iterable[Any]) -> int:
        form, size = SCALARS[element.name]
        if isinstance(values, (bytes, bytearray, memoryview)):
            raw: Data = memoryview(values).cast("B")
        else:
            listed = list(values)
            try:
                raw = struct.pack(f"<{len(listed)}{form}", *listed)
            except struct.error as error:
                raise ModelError(f"{table}.{field.name}: values do not fit {element.name}: {error}") from None
        builder = self._builder
        n = len(raw) // size
        builder.StartVector(size, n, _ALIGNMENTS.get((table, field.name), size))
        builder.head -= len(raw)
        builder.Bytes[builder.head : builder.head + len(raw)] = raw
        return int(builder.EndVector())


def _width(code: str) -> int:
    return 4 if code == "offset" else SCALARS[code][1]
