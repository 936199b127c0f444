"""The errors that the product raises; only the command line maps them to exit codes.

Each message says what was expected, what came, where, and what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence


class DseError(Exception):
    """Root of all errors of the product: the work failed (exit code 1)."""

    exit_code = 1


class InputError(DseError):
    """Something the user gave can not be used (exit code 2)."""

    exit_code = 2


class ConfigError(InputError):
    """A configuration has one or more faults; all of them are told at once.

    Parameters
    ----------
    faults
        One line per fault, each with file, line and field.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


class ModelError(InputError):
    """A model file is damaged, not a .tflite file, or uses something unknown."""


class CutError(InputError):
    """A model can not be cut where it was asked (state, resource, cycle between stages)."""


class PlatformError(InputError):
    """A platform description or an affinity wish does not fit the machine."""


class MissingExtraError(InputError):
    """A feature needs an optional dependency; the message names the extra."""


class DeviceError(DseError):
    """Work on a device failed."""


class RuntimeRefusedError(DeviceError):
    """The runtime refused to build or run a model (the process survived)."""


class ChildDiedError(DeviceError):
    """A child process died (a signal, a native crash, or killed by a user).

    ``signal`` is the number of the signal, when it was one.
    """

    signal: int | None = None


class ChildTimeoutError(DeviceError):
    """A child process did not answer in time and was ended."""


class AffinityError(DeviceError):
    """A thread of the runtime does not have the affinity mask it was given."""


class MismatchError(DeviceError):
    """Split and whole model give different outputs."""
