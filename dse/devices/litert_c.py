"""The runtime's C API through ctypes: models that read and write the caller's own memory.

Only for child processes (native code may crash).  ``libLiteRt.so`` of the ``ai-edge-litert`` wheel
exports these functions; their layouts are not promised to stay, so everything that comes back is
checked, and callers fall back to the interpreter when ``CompiledModel`` refuses.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dse.errors import RuntimeRefusedError

ALIGNMENT = 64
"""Memory handed to the runtime starts at a multiple of this."""

CPU, GPU = 1, 2
"""Bits of the hardware that a model may be compiled for."""

KERNEL_MODES = {"default": "xnnpack", "builtin": "builtin", "reference": "reference"}
"""The runtime's names for the kernel libraries of ``dse.platforms.Kernels``."""

_RANK_MASK = 0x7F
_MAX_RANK = 8
# LiteRtElementType, the numbering of kTfLiteType
ELEMENT_NAMES = {
    1: "float32",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    8: "complex64",
    9: "int8",
    10: "float16",
    11: "float64",
    13: "uint64",
    16: "uint32",
    17: "uint16",
}
_FUNCTIONS = (
    "LiteRtCreateEnvironment",
    "LiteRtCreateModelFromFile",
    "LiteRtDestroyModel",
    "LiteRtCreateOptions",
    "LiteRtDestroyOptions",
    "LiteRtSetOptionsHardwareAccelerators",
    "LiteRtCreateOpaqueOptions",
    "LiteRtAddOpaqueOptions",
    "LiteRtCreateCompiledModel",
    "LiteRtDestroyCompiledModel",
    "LiteRtRunCompiledModel",
    "LiteRtGetNumModelSignatures",
    "LiteRtGetModelSignature",
    "LiteRtGetNumSignatureInputs",
    "LiteRtGetNumSignatureOutputs",
    "LiteRtGetSignatureInputTensorByIndex",
    "LiteRtGetSignatureOutputTensorByIndex",
    "LiteRtGetTensorName",
    "LiteRtGetRankedTensorType",
    "LiteRtGetCompiledModelInputBufferRequirements",
    "LiteRtGetCompiledModelOutputBufferRequirements",
    "LiteRtGetTensorBufferRequirementsBufferSize",
    "LiteRtCreateTensorBufferFromHostMemory",
    "LiteRtDestroyTensorBuffer",
)
_Pointer = ctypes.c_void_p
_Size = ctypes.c_size_t


class _RankedType(ctypes.Structure):
    """LiteRtRankedTensorType: element type, then rank in the low 7 bits, then sizes and strides."""

    _fields_ = (
        ("element", ctypes.c_int),
        ("bits", ctypes.c_uint32),
        ("sizes", ctypes.c_int32 * _MAX_RANK),
        ("strides", ctypes.c_uint32 * _MAX_RANK),
    )


@dataclass(frozen=True, slots=True)
class SignatureTensor:
    """An input or output: name, element type, shape, and the bytes that a buffer for it needs."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    buffer_bytes: int


class CompiledModel:
    """A model compiled for CPU threads, with the affinity of the calling thread.

    Parameters
    ----------
    path
        The .tflite file.
    threads
        Threads of the kernels.
    kernels
        See ``dse.platforms.Kernels``.
    hardware
        What the model may be compiled for, as bits.

    Raises
    ------
    RuntimeRefusedError
        The library is not there or differs, or the runtime refuses the model (variable tensors
        are not supported by this API, several signatures are not taken here).
    """

    def __init__(self, path: Path, threads: int, kernels: str = "default", *, hardware: int = CPU) -> None:
        self._api = library()
        self._path = path
        self._buffers: dict[int, _Pointer] = {}
        self._model = self._make("LiteRtCreateModelFromFile", environment(), str(path).encode())
        options = self._make("LiteRtCreateOptions")
        self._call("LiteRtSetOptionsHardwareAccelerators", options, hardware)
        mode = KERNEL_MODES[kernels]
        text = f'num_threads = {threads}\nkernel_mode = "{mode}"\n'
        self._add_text_options(options, b"xnnpack", text.encode())
        self._add_further_options(options)
        self._compiled = self._make("LiteRtCreateCompiledModel", environment(), self._model, options)
        self._types: dict[tuple[str, int], _RankedType] = {}
        self._call_nothing("LiteRtDestroyOptions", options)
        count = _Size()
        self._call("LiteRtGetNumModelSignatures", self._model, ctypes.byref(count))
        if count.value != 1:
            raise RuntimeRefusedError(f"{path}: expected one signature, the runtime sees {count.value}")
        signature = self._make("LiteRtGetModelSignature", self._model, _Size(0))
        self.inputs = self._tensors("Input", signature)
        self.outputs = self._tensors("Output", signature)

    def wrap(self, side: str, number: int, address: int, n_bytes: int) -> int:
        """Make a buffer of the runtime around the caller's memory, which must outlive it.

        Parameters
        ----------
        side
            ``Input`` or ``Output``.
        number
            Which one.
        address, n_bytes
            The memory; aligned to ``ALIGNMENT``.

        Returns
        -------
        int
            Handle for ``run``.
        """
        needed = (self.inputs if side == "Input" else self.outputs)[number].buffer_bytes
        if address % ALIGNMENT or n_bytes < needed:
            raise RuntimeRefusedError(
                f"{self._path}: {side.lower()} {number} needs {needed} bytes aligned to {ALIGNMENT}, "
                f"got {n_bytes} at {address % ALIGNMENT} past such a boundary"
            )
        buffer = self._make(
            "LiteRtCreateTensorBufferFromHostMemory",
            ctypes.byref(self._types[side, number]),
            _Pointer(address),
            _Size(n_bytes),
            None,
        )
        handle = int(buffer.value or 0)
        self._buffers[handle] = buffer
        return handle

    def unwrap(self, handle: int) -> None:
        """Free a buffer of ``wrap``; the model must not run, nor use it again."""
        self._call_nothing("LiteRtDestroyTensorBuffer", self._buffers.pop(handle))

    def handles(self, count: int) -> ctypes.Array[ctypes.c_void_p]:
        """Return an array for ``count`` handles."""
        return (_Pointer * count)()

    def run(self, inputs: ctypes.Array[ctypes.c_void_p], outputs: ctypes.Array[ctypes.c_void_p]) -> None:
        """Run the model on wrapped memory; other threads run meanwhile."""
        status = self._api.LiteRtRunCompiledModel(
            self._compiled, _Size(0), _Size(len(inputs)), inputs, _Size(len(outputs)), outputs
        )
        if status:
            raise RuntimeRefusedError(f"{self._path}: the runtime failed to run the model (status {status})")

    @property
    def address(self) -> int:
        """Address of the compiled model: the first argument of the function at ``run_address``."""
        return int(self._compiled.value or 0)

    @property
    def run_address(self) -> int:
        """Address of LiteRtRunCompiledModel, for callers in other languages."""
        return int(ctypes.cast(self._api.LiteRtRunCompiledModel, _Pointer).value or 0)

    def close(self) -> None:
        """Free what the runtime holds."""
        for handle in tuple(self._buffers):
            self.unwrap(handle)
        self._call_nothing("LiteRtDestroyCompiledModel", self._compiled)
        self._call_nothing("LiteRtDestroyModel", self._model)

    def _tensors(self, side: str, signature: _Pointer) -> tuple[SignatureTensor, ...]:
        count = _Size()
        self._call(f"LiteRtGetNumSignature{side}s", signature, ctypes.byref(count))
        found = []
        for number in range(count.value):
            tensor = self._make(f"LiteRtGetSignature{side}TensorByIndex", signature, _Size(number))
            name = ctypes.c_char_p()
            self._call("LiteRtGetTensorName", tensor, ctypes.byref(name))
            kind = _RankedType()
            self._call("LiteRtGetRankedTensorType", tensor, ctypes.byref(kind))
            needs = self._make(
                f"LiteRtGetCompiledModel{side}BufferRequirements", self._compiled, _Size(0), _Size(number)
            )
            size = _Size()
            self._call("LiteRtGetTensorBufferRequirementsBufferSize", needs, ctypes.byref(size))
            rank = kind.bits & _RANK_MASK
            if kind.element not in ELEMENT_NAMES or rank > _MAX_RANK:
                raise RuntimeRefusedError(
                    f"{self._path}: {side.lower()} {number} has element type {kind.element} and rank {rank}, "
                    f"which is not known here"
                )
            self._types[side, number] = kind
            shape = tuple(int(value) for value in kind.sizes[:rank])
            text = (name.value or b"").decode(errors="replace")
            found.append(SignatureTensor(text, ELEMENT_NAMES[kind.element], shape, int(size.value)))
        return tuple(found)

    def _add_further_options(self, options: _Pointer) -> None:
        """For subclasses: more text options, before the model is compiled."""

    def _add_text_options(self, options: _Pointer, identifier: bytes, text: bytes) -> None:
        # The runtime frees the text, so it must come from malloc.
        libc = ctypes.CDLL(None)
        libc.strdup.restype = _Pointer
        copied = _Pointer(libc.strdup(ctypes.c_char_p(text)))
        made = self._make("LiteRtCreateOpaqueOptions", identifier, copied, ctypes.cast(libc.free, _Pointer))
        self._call("LiteRtAddOpaqueOptions", options, made)

    def _make(self, function: str, *arguments: object) -> _Pointer:
        result = _Pointer()
        self._call(function, *arguments, ctypes.byref(result))
        if not result.value:
            raise RuntimeRefusedError(f"{self._path}: {function} of the runtime returned nothing")
        return result

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._api, function)(*arguments)
        if status:
            raise RuntimeRefusedError(f"{self._path}: {function} of the runtime failed (status {status})")

    def _call_nothing(self, function: str, *arguments: object) -> None:
        getattr(self._api, function)(*arguments)


@cache
def library() -> ctypes.CDLL:
    """Return the runtime's shared library, with all functions that a CPU model needs."""
    import ai_edge_litert

    path = Path(ai_edge_litert.__file__ or "").parent / "libLiteRt.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise RuntimeRefusedError(f"the runtime's C API can not be loaded: {error}") from None
    missing = [name for name in _FUNCTIONS if not hasattr(library, name)]
    if missing:
        raise RuntimeRefusedError(f"the runtime's C API at {path} lacks {', '.join(missing)}")
    return library


@cache
def environment() -> ctypes.c_void_p:
    """Return the process's environment: models of one environment can share memory."""
    environment = _Pointer()
    status = library().LiteRtCreateEnvironment(0, None, ctypes.byref(environment))
    if status or not environment.value:
        raise RuntimeRefusedError(f"the runtime's C API made no environment (status {status})")
    return environment


def find_ports(
    wanted: Sequence[tuple[str, str, tuple[int, ...]]], found: Sequence[SignatureTensor], where: str
) -> tuple[int, ...]:
    """Match tensors by name (by position where names repeat or are empty), and check them.

    Parameters
    ----------
    wanted
        Name, element type and shape, in the file's order.
    found
        The signature's tensors: the runtime may order them otherwise.
    where
        For messages.

    Returns
    -------
    tuple of int
        For each wanted tensor its place in ``found``.

    Raises
    ------
    RuntimeRefusedError
        Number, name, type or shape differ.
    """
    if len(wanted) != len(found):
        raise RuntimeRefusedError(f"{where}: the signature has {len(found)} tensors, expected {len(wanted)}")
    names = [tensor.name for tensor in found]
    distinct = len(set(names)) == len(names)
    places = []
    for position, (name, dtype, shape) in enumerate(wanted):
        if distinct and name and name not in names:
            raise RuntimeRefusedError(f"{where}: the signature has no tensor {name!r}, only {names}")
        place = names.index(name) if distinct and name else position
        got = found[place]
        if (got.dtype, got.shape) != (dtype, shape):
            raise RuntimeRefusedError(
                f"{where}: {name!r} is {got.dtype}{got.shape} in the signature, expected {dtype}{shape}"
            )
        places.append(place)
    return tuple(places)
