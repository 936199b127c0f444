"""The targets, by name."""

from __future__ import annotations

from dse.deploy.android.target import Android
from dse.deploy.arm_compute.target import ArmCompute
from dse.deploy.armnn.target import ArmNN
from dse.deploy.linux.target import Linux
from dse.deploy.target import Target
from dse.errors import InputError

TARGETS: dict[str, Target] = {target.name: target for target in (Linux(), Android(), ArmNN(), ArmCompute())}
"""In the order in which they are listed."""


def find_target(name: str) -> Target:
    """Return the target of that name.

    Raises
    ------
    InputError
        There is none; lists what there is.
    """
    try:
        return TARGETS[name]
    except KeyError:
        raise InputError(f"there is no target {name!r}; expected one of {', '.join(TARGETS)}") from None
