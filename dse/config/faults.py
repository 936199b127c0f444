"""From pydantic's errors to lines that a user can act on: file, line, field, expected, got."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from dse.yaml_io import PathKey

Where = Callable[[PathKey, bool], str]

_EXPECTED = {
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping (key: value)",
    "finite_number": "a finite number",
    "float_type": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "model_attributes_type": "a mapping (key: value)",
    "model_type": "a mapping (key: value)",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "too_short": "at least {min_length} entry",
    "tuple_type": "a list",
    "expected": "{expected}",
}


def describe(value: Any) -> str:
    """Show a value from a file in a few words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping | BaseModel):
        return "a mapping"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return f"the text {text!r}"
    if isinstance(value, Sequence):
        text = ", ".join(describe(item) for item in value)
        return f"the list [{text}]" if len(text) <= 60 else f"a list of {len(value)}"
    return repr(value)


def field_name(path: PathKey) -> str:
    """Write a path as ``search.pins[0].on``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(key: str, known: Sequence[str]) -> str | None:
    """Return the key that was probably meant."""
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.6)), None)


def fault_lines(error: ValidationError, schema: Mapping[str, Any], where: Where) -> list[str]:
    """Write each error as ``file:line: field: expected ..., got ...``.

    Parameters
    ----------
    schema
        JSON Schema of the validated model: knows the keys that exist at each place.
    where
        Finds ``file:line`` of a path; the flag asks for the key instead of the value.
    """
    lines: dict[str, None] = {}  # each once
    missing: dict[PathKey, str] = {}
    misspelt: set[PathKey] = set()
    for item in error.errors(include_url=False):
        # Tags of unions are part of pydantic's locations but not of the file; ours have brackets.
        path = tuple(part for part in item["loc"] if not (isinstance(part, str) and part[:1] == "("))
        name = field_name(path) or "the file"
        kind = item["type"]
        if kind == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue  # pydantic counts only the entries without faults, and those have their own line
        if kind == "extra_forbidden":
            known = known_keys(schema, path[:-1])
            meant = nearest(str(path[-1]), known)
            misspelt |= {(*path[:-1], meant)} if meant else set()
            hint = f"did you mean {meant!r}?" if meant else f"known keys: {', '.join(known)}"
            lines[f"{where(path, True)}: {name}: unknown key; {hint}"] = None
        elif kind == "missing":
            missing[path] = f"{where(path, False)}: {name}: required, but missing"
        else:
            template = _EXPECTED.get(kind)
            wanted = template.format(**item.get("ctx", {})) if template else f"valid ({item['msg']})"
            got = describe(item["input"])
            lines[f"{where(path, False)}: {name}: expected {wanted}, got {got}"] = None
    lines.update(dict.fromkeys(line for path, line in missing.items() if path not in misspelt))
    return sorted(lines, key=_line_number)


def _line_number(line: str) -> int:
    found = re.match(r"[^:]*:(\d+):", line)
    return int(found[1]) if found else 0


def known_keys(schema: Mapping[str, Any], path: PathKey) -> list[str]:
    """Return the keys that may stand at a place, from the JSON Schema."""
    nodes = [schema]
    for part in path:
        nodes = [child for node in nodes for child in _children(schema, node, part)]
    return [key for node in nodes for plain in _resolve(schema, node) for key in plain.get("properties", {})]


def _resolve(schema: Mapping[str, Any], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Follow references and alternatives to plain nodes."""
    if "$ref" in node:
        return _resolve(schema, schema["$defs"][node["$ref"].rpartition("/")[2]])
    choices = [*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())]
    own = [node] if "properties" in node or not choices else []
    return own + [plain for choice in choices for plain in _resolve(schema, choice)]


def _children(schema: Mapping[str, Any], node: Mapping[str, Any], part: str | int) -> list[Mapping[str, Any]]:
    found = []
    for plain in _resolve(schema, node):
        if isinstance(part, int):
            found += [plain["items"]] if isinstance(plain.get("items"), dict) else []
        elif part in plain.get("properties", {}):
            found.append(plain["properties"][part])
    return found
