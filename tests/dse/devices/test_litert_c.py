"""Matching of a file's ports with the runtime's signature (the library itself only runs in children)."""

from __future__ import annotations

import pytest

from dse.devices.litert_c import SignatureTensor, find_ports
from dse.errors import RuntimeRefusedError

A = SignatureTensor("a", "float32", (1, 4), 16)
B = SignatureTensor("b", "float32", (1, 4), 16)


def test_ports_are_matched_by_name_where_the_signature_has_another_order():
    """Two outputs were swapped: names and positions differ."""
    assert find_ports([("a", "float32", (1, 4)), ("b", "float32", (1, 4))], [B, A], "s") == (1, 0)


def test_position_decides_where_names_repeat_or_are_empty():
    assert find_ports([("a", "float32", (1, 4))] * 2, [A, A], "s") == (0, 1)
    assert find_ports([("", "float32", (1, 4)), ("", "float32", (1, 4))], [B, A], "s") == (0, 1)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ([], "s: the signature has 1 tensors, expected 0"),
        ([("z", "float32", (1, 4))], "no tensor 'z', only"),
        ([("a", "int32", (1, 4))], r"'a' is float32\(1, 4\) in the signature, expected int32\(1, 4\)"),
        ([("a", "float32", (4,))], r"expected float32\(4,\)"),
    ],
)
def test_differences_are_told(wanted, message):
    with pytest.raises(RuntimeRefusedError, match=message):
        find_ports(wanted, [A], "s")
