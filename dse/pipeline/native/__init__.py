"""The loop of a lane's threads in C: compiled on first use, never required."""

from dse.pipeline.native.loop import NativeLoop, make_loop
from dse.pipeline.native.structures import NativeUnavailableError, load_library

__all__ = ["NativeLoop", "NativeUnavailableError", "load_library", "make_loop"]
