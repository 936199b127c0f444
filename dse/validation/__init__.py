"""Whether stages give the whole model's outputs, and whether predictions were right."""

from dse.validation.diagnosis import core_utilisation, diagnose
from dse.validation.outputs import (
    FLOAT_TOLERANCE,
    STEP_TOLERANCE,
    OutputCheck,
    OutputDifference,
    check_outputs,
    compare,
    moving_frames,
    whole_outputs,
)
from dse.validation.prediction import PredictionError, StageError, measured_stage_times, prediction_error

__all__ = [
    "FLOAT_TOLERANCE",
    "STEP_TOLERANCE",
    "OutputCheck",
    "OutputDifference",
    "PredictionError",
    "StageError",
    "check_outputs",
    "compare",
    "core_utilisation",
    "diagnose",
    "measured_stage_times",
    "moving_frames",
    "prediction_error",
    "whole_outputs",
]
