"""The few parts of the protobuf wire format that a trace needs.

References
----------
Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import struct

_VARINT, _FIXED64, _LENGTH = 0, 1, 2
_MASK = (1 << 64) - 1


class Message:
    """A message under construction; methods append a field and return the message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def integer(self, field: int, value: int) -> Message:
        """Append an integer, enum or bool (negative values as two's complement)."""
        self._varint(field << 3 | _VARINT)
        self._varint(value & _MASK)
        return self

    def fixed64(self, field: int, value: int) -> Message:
        """Append an unsigned number of eight bytes."""
        self._varint(field << 3 | _FIXED64)
        self._data += struct.pack("<Q", value)
        return self

    def double(self, field: int, value: float) -> Message:
        """Append a floating-point number."""
        self._varint(field << 3 | _FIXED64)
        self._data += struct.pack("<d", value)
        return self

    def text(self, field: int, value: str) -> Message:
        """Append text."""
        return self._block(field, value.encode())

    def message(self, field: int, value: Message) -> Message:
        """Append a message as it is now."""
        return self._block(field, value._data)

    def _block(self, field: int, data: bytes | bytearray) -> Message:
        self._varint(field << 3 | _LENGTH)
        self._varint(len(data))
        self._data += data
        return self

    def _varint(self, value: int) -> None:
        while value > 0x7F:
            self._data.append(value & 0x7F | 0x80)
            value >>= 7
        self._data.append(value)
