"""Reading and writing YAML: the only importer of ``yaml``.

Two readers of one file must see one meaning, so a plain (unquoted) value that YAML 1.1 and
YAML 1.2 read differently (``no``, ``012``, ``1:30``, ``2024-01-31``, ``1_000``) is an error that
says to quote it.  Numbers with an exponent are numbers (``1e9``), as in YAML 1.2.  Keys are always
text as written, so ``on:`` is a key like any other.  Tags, merge keys (``<<``), several documents
in one file and duplicate keys are errors.

References
----------
YAML 1.1 type repository (https://yaml.org/type/) and YAML 1.2.2, section 10.3.2 (core schema).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dse.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
MAX_DEPTH = 50

_NO_TAG = "no tag"

PathKey = tuple[str | int, ...]

_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"([-+]?)\.(?:(inf|Inf|INF)|(nan|NaN|NAN))")
_TRAPS = (
    (re.compile(r"(?:y|n|yes|no|on|off)", re.IGNORECASE), "is yes or no to some readers and text to others"),
    (re.compile(r"[-+]?0[0-7_]+|0o[0-7]+"), "is octal to some readers only"),
    (re.compile(r"[-+]?0[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?"), "is a number to some readers only"),
    (re.compile(r"[-+]?0b[01_]+"), "is binary to some readers only"),
    (re.compile(r"[-+]0x[0-9a-fA-F_]+|0x[0-9a-fA-F]*_[0-9a-fA-F_]*"), "is a number to some readers only"),
    (re.compile(r"[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?"), "is a base-60 number to some readers"),
    (re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?"), "is a date to some readers"),
    (
        re.compile(r"[-+]?(?:[0-9]+_[0-9_]*(?:\.[0-9_]*)?|[0-9]*\.[0-9]*_[0-9_]*)(?:[eE][-+]?[0-9]+)?"),
        "is a number to some readers only",
    ),
    (re.compile(r"="), "has a meaning of its own to some readers"),
)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a text; both count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data (dict, list, str, int, float, bool, None) and where each part of it stands.

    Parameters
    ----------
    data
        The content.
    name
        Name of the file, for messages.
    values, keys
        Positions by path, for example ``("search", "pins", 0, "on")``.
    """

    data: Any
    name: str
    values: Mapping[PathKey, Position]
    keys: Mapping[PathKey, Position]

    def where(self, path: PathKey, *, key: bool = False) -> str:
        """Return ``file:line`` of a value (or of its key), or of the nearest parent that exists."""
        if key and path in self.keys:
            return f"{self.name}:{self.keys[path].line}"
        for length in range(len(path), -1, -1):
            position = self.values.get(path[:length])
            if position is not None:
                return f"{self.name}:{position.line}"
        return self.name


class _Loader(yaml.SafeLoader):
    """Composes nodes only (no objects are ever made), within limits."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        """Leave the meaning of values to ``_plain``; every other tag was written by the user."""
        return _NO_TAG

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(
                problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.get_mark()
            )
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _Reader:
    """Turns nodes into plain data; collects every fault."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[str] = []
        self.values: dict[PathKey, Position] = {}
        self.keys: dict[PathKey, Position] = {}
        self._open: set[int] = set()
        self._n_nodes = 0

    def fault(self, node: yaml.Node, text: str) -> None:
        mark = node.start_mark
        self.faults.append(f"{self.name}:{mark.line + 1}:{mark.column + 1}: {text}")

    def read(self, node: yaml.Node, path: PathKey) -> Any:
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES or id(node) in self._open:
            what = f"more than {MAX_NODES} values" if self._n_nodes > MAX_NODES else "an alias inside itself"
            self.fault(node, f"{what} (after aliases are followed); write a smaller file")
            raise ConfigError(self.faults)
        self.values[path] = Position(node.start_mark.line + 1, node.start_mark.column + 1)
        if node.tag != _NO_TAG:
            self.fault(node, f"tag {node.tag!r} is not allowed; write plain values")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, number)) for number, item in enumerate(node.value)]
            if isinstance(node, yaml.ScalarNode):
                return self._scalar(node)
            raise TypeError(f"unknown node {type(node).__name__}")
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: PathKey) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(key_node, "expected a text as key, got a list or mapping")
                continue
            key = str(key_node.value)
            if key == "<<" and key_node.style is None:
                self.fault(key_node, "merge keys ('<<') are not supported; write the keys out")
                continue
            child = (*path, key)
            if key in result:
                self.fault(key_node, f"key {key!r} appears twice (first in line {self.keys[child].line})")
                continue
            self.keys[child] = Position(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            result[key] = self.read(value_node, child)
        return result

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if node.style is not None:
            return text
        try:
            return _plain(text)
        except ValueError as error:
            self.fault(node, str(error))
            return text


def _plain(text: str) -> Any:
    """Return the meaning of an unquoted value.

    Raises
    ------
    ValueError
        YAML 1.1 and 1.2 differ on it.
    """
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return _whole(text, 10)
    if _HEX.fullmatch(text):
        return _whole(text, 16)
    special = _SPECIAL_FLOAT.fullmatch(text)
    if special:
        return float(special[1] + (special[2] or special[3]))
    if _FLOAT.fullmatch(text):
        return float(text)
    for trap, why in _TRAPS:
        if trap.fullmatch(text):
            advice = " or write true / false" if text.lower() in ("yes", "no", "on", "off", "y", "n") else ""
            raise ValueError(f'{text} {why}: write "{text}" in quotes if you mean text{advice}')
    return text


def _whole(text: str, base: int) -> int:
    if len(text) > 40:
        raise ValueError(f"a number of {len(text)} digits; expected at most 40")
    return int(text, base)


def load(source: Path | str, name: str | None = None) -> Document:
    """Read one YAML document.

    Parameters
    ----------
    source
        A file, or the text itself.
    name
        Name for messages; the path as given when None.

    Raises
    ------
    ConfigError
        The file can not be read, is too large, or has faults; all of them are told, each with
        file, line and column.
    """
    name = name or (str(source) if isinstance(source, Path) else "text")
    text = _read_text(source, name) if isinstance(source, Path) else source
    if len(text) > MAX_BYTES:
        raise ConfigError([f"{name}: {len(text)} characters; expected at most {MAX_BYTES}"])
    try:
        node = _compose(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([f"{name}:{line}: a character that YAML does not allow: {error.reason}"]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        context = f" ({error.context})" if error.context else ""
        raise ConfigError([f"{place}: not valid YAML: {error.problem or error}{context}"]) from None
    if node is None:
        raise ConfigError([f"{name}: the file is empty; expected a mapping (key: value)"])
    reader = _Reader(name)
    data = reader.read(node, ())
    if reader.faults:
        raise ConfigError(reader.faults)
    return Document(data, name, reader.values, reader.keys)


def _compose(text: str) -> yaml.Node | None:
    loader = _Loader(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _read_text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError([f"{name}: can not be read: {error.strerror}"]) from None
    if len(raw) > MAX_BYTES:
        raise ConfigError([f"{name}: more than {MAX_BYTES} bytes; is this really a YAML file?"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}:{line}: not UTF-8 text; is this really a YAML file?"]) from None


class _Dumper(yaml.SafeDumper):
    """Quotes every text that ``load`` would not read back as that text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        try:
            same = _plain(data) == data and data.isprintable()
        except ValueError:
            same = False
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if same else '"')

    def sequence(self, data: Any) -> yaml.SequenceNode:
        flat = all(isinstance(item, (int, float)) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", list(data), flow_style=flat)


_Dumper.add_representer(str, _Dumper.text)
_Dumper.add_representer(list, _Dumper.sequence)
_Dumper.add_representer(tuple, _Dumper.sequence)


def dump(data: Any) -> str:
    """Write plain data (dict, list, tuple, str, int, float, bool, None) as YAML text.

    ``load(dump(data)).data == data`` (tuples come back as lists); keys keep their order.

    Raises
    ------
    TypeError
        Something in the data is not plain.
    """
    try:
        return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100))
    except yaml.representer.RepresenterError as error:
        raise TypeError(f"only plain data can be written as YAML, got {error.args[-1]!r}") from None
