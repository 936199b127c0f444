"""Experiments and platforms from YAML: checked strictly, every fault told at once.

``load_experiment``, ``experiment_for_model(s)`` and ``load_platform`` read; ``json_schema`` describes
the form; ``Experiment`` is what the rest of the product works with.
"""

from dse.config.experiment import (
    Experiment,
    ModelPath,
    PackagedModel,
    Workload,
    ZooModel,
    platform_data,
)
from dse.config.loading import (
    build_experiment,
    check_pins,
    experiment_for_model,
    experiment_for_models,
    json_schema,
    load_experiment,
    load_platform,
    load_sweep_section,
    sweep_json_schema,
    with_value,
)
from dse.config.pins import Pin

__all__ = [
    "Experiment",
    "ModelPath",
    "PackagedModel",
    "Pin",
    "Workload",
    "ZooModel",
    "build_experiment",
    "check_pins",
    "experiment_for_model",
    "experiment_for_models",
    "json_schema",
    "load_experiment",
    "load_platform",
    "load_sweep_section",
    "platform_data",
    "sweep_json_schema",
    "with_value",
]
