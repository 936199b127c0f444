"""Errors of the solvers."""

from __future__ import annotations


class SolverError(Exception):
    """Root of all errors of this package."""


class ProblemError(SolverError):
    """A problem contradicts itself (shapes, indices, ranges); the message quotes both numbers."""


class MappingError(SolverError):
    """A mapping is nonsense for its problem (a layer or slot that does not exist, an empty stage)."""


class InfeasibleError(SolverError):
    """Proved: no mapping fulfils the constraints.  Names the constraint, demand, limit and unit."""


class CapError(SolverError):
    """An exact method would exceed a cap; the message names the cap and what it would need."""


class UnsupportedProblemError(SolverError):
    """A solver does not take this kind of problem; the message names a solver that does."""


class EvaluationMismatchError(SolverError):
    """A solver's own objective differs from the evaluator's: a bug in the solver."""


class MissingSolverExtraError(SolverError):
    """A solver needs an optional dependency; the message names the package."""


class StoppedError(SolverError):
    """A search was told to end, or its time is up; whoever started it still has the incumbent."""
