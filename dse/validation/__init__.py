"""Whether stages give the whole model's outputs, and whether predictions were right."""

from dse.validation.diagnosis import core_utilisation, diagnose
from dse.validation.outputs import (
    FLOAT_TOLERANCE,
    OTHER_FLOAT_TOLERANCE,
    OTHER_STEP_TOLERANCE,
    STEP_TOLERANCE,
    OutputCheck,
    OutputDifference,
    check_outputs,
    compare,
    kernels_of,
    moving_frames,
    needs_check,
    way_of_running,
    whole_outputs,
)
from dse.validation.prediction import PredictionError, StageError, measured_stage_times, prediction_error

__all__ = [
    "FLOAT_TOLERANCE",
    "OTHER_FLOAT_TOLERANCE",
    "OTHER_STEP_TOLERANCE",
    "STEP_TOLERANCE",
    "OutputCheck",
    "OutputDifference",
    "PredictionError",
    "StageError",
    "check_outputs",
    "compare",
    "core_utilisation",
    "diagnose",
    "kernels_of",
    "measured_stage_times",
    "moving_frames",
    "needs_check",
    "prediction_error",
    "way_of_running",
    "whole_outputs",
]
