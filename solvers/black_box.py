"""Search by trial for objectives that only a function can score: a simulator, or the hardware.

The only importer of Optuna, which is the optional extra ``search``."""

from __future__ import annotations
