"""A model as it is to be worked on: from a bundle, through a signature, with fixed shapes.

``--shape input=1x224x224x3`` makes a model with fixed dimensions of one with open ones; everything
after that works on the fixed model: its layers, costs, stages and measurements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dse.devices.shapes import runtime_shapes
from dse.errors import InputError
from dse.files import write_bytes
from dse.flatbuffer.encode import encode
from dse.flatbuffer.layers import is_dynamic
from dse.flatbuffer.operators import clean
from dse.flatbuffer.reader import ModelFile, read_model
from dse.flatbuffer.shapes import dynamic_inputs, with_shapes
from dse.flatbuffer.signatures import choose_signature

Shape = tuple[int, ...]
_MAX_DIMENSION = 1 << 31


def open_model(
    path: Path,
    folder: Path,
    *,
    signature: str | None = None,
    shapes: Sequence[str] = (),
    resolve: bool = False,
) -> ModelFile:
    """Read a model and bring it into the form that is to be worked on.

    Parameters
    ----------
    path
        A .tflite file, or a member of a bundle (``all.task!one.tflite``).
    folder
        Where a new file is written when the form differs from the file at ``path``.
    signature
        Work on this signature's subgraph instead of the main one.
    shapes
        Texts for ``parse_shapes``.
    resolve
        Also without wishes, ask the runtime for sizes that the file leaves open: cut tensors need them.

    Returns
    -------
    ModelFile
        On disk, so that the runtime can open it: at ``path`` itself when nothing had to change.

    Raises
    ------
    ModelError, CutError, InputError, RuntimeRefusedError, ChildDiedError
        See ``read_model``, ``choose_signature`` and ``fix_shapes``.
    """
    wanted = parse_shapes(shapes)
    file = read_model(path)
    if signature is not None:
        file = choose_signature(file, signature)
    file = file.in_folder(folder)
    if wanted or (resolve and has_open_sizes(file)):
        file = fix_shapes(file, wanted, folder)
    return file


def has_open_sizes(file: ModelFile) -> bool:
    """Whether some tensor of the main subgraph has a size that the file does not tell."""
    return any(is_dynamic(tensor) for tensor in file.model.subgraphs[0].tensors)


def parse_shapes(texts: Sequence[str]) -> dict[str, Shape]:
    """Parse ``NAME=1x224x224x3`` (a scalar: ``NAME=``).

    Raises
    ------
    InputError
        A text is not of this form or an input is there twice.
    """
    shapes: dict[str, Shape] = {}
    for text in texts:
        name, equals, sizes = text.rpartition("=")
        parts = sizes.split("x") if sizes else []
        if not equals or not name or not all(part.isdigit() for part in parts):
            raise InputError(f"--shape {text!r}: expected NAME=1x224x224x3, the input's name and its sizes")
        if name in shapes:
            raise InputError(f"--shape {text!r}: the input {name!r} was given before")
        shapes[name] = tuple(int(part) for part in parts)
        if any(size >= _MAX_DIMENSION for size in shapes[name]):
            raise InputError(f"--shape {text!r}: a size is too large")
    return shapes


def fix_shapes(file: ModelFile, wanted: Mapping[str, Shape], folder: Path) -> ModelFile:
    """Give a model's inputs the wanted shapes and take all other shapes from the runtime.

    Parameters
    ----------
    file
        The model.
    wanted
        Shape by name of the input (also its position, as text); others keep their own shape, open
        sizes of theirs are taken as 1.
    folder
        Where the fixed model is written, as ``<name>_<shapes>.tflite``.

    Returns
    -------
    ModelFile
        The fixed model.  A size that depends on the values of the inputs stays open.

    Raises
    ------
    InputError
        An input is unknown, or a size contradicts the model.
    RuntimeRefusedError, ChildDiedError
        The model does not run with these shapes.
    """
    main = file.model.subgraphs[0]
    names = [clean(main.tensors[index].name or "") for index in main.inputs]
    shapes: dict[int, Shape] = {}
    for name, shape in wanted.items():
        position = _position(names, name)
        _check(file, names[position], position, shape)
        shapes[position] = shape
    file = file.in_folder(folder)
    found = runtime_shapes(file.path, shapes)
    fixed = with_shapes(file.model, found)
    sizes = "_".join("x".join(map(str, shape)) or "scalar" for shape in shapes.values()) or "fixed"
    path = folder / f"{file.name}_{sizes}.tflite"
    write_bytes(path, encode(fixed))
    return read_model(path)


def _position(names: Sequence[str], name: str) -> int:
    if name in names:
        return names.index(name)
    if name.isdigit() and int(name) < len(names):
        return int(name)
    listed = ", ".join(repr(known) for known in names)
    raise InputError(f"--shape: there is no input {name!r}; the model has {listed}")


def _check(file: ModelFile, name: str, position: int, shape: Shape) -> None:
    main = file.model.subgraphs[0]
    tensor = main.tensors[main.inputs[position]]
    signature = dynamic_inputs(file.model).get(position, tensor.shape or ())
    if not signature and not tensor.has_rank:
        return  # the rank is not known either
    fits = len(shape) == len(signature) and all(
        open_ in (-1, size) for open_, size in zip(signature, shape, strict=True)
    )
    if not fits:
        expected = "x".join("?" if size < 0 else str(size) for size in signature) or "a scalar"
        got = "x".join(map(str, shape)) or "a scalar"
        raise InputError(f"--shape: input {name!r} takes {expected} (? is open), got {got}")
