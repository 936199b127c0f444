"""JSON Schema of ``mapping.yaml``, for editors and for other programs."""

from __future__ import annotations

from typing import Any

from dse.mapping_file import FORMAT, VERSION
from dse.platforms import DEVICES, KERNELS


def mapping_schema() -> dict[str, Any]:
    """Return the schema (draft 2020-12)."""
    stage = _table(
        {
            "name": _text("Unique in the mapping.", minLength=1),
            "layers": {
                "description": "Layers of the model, ascending: '0-16', '0-4,7' or one number.",
                "anyOf": [
                    {"type": "string", "pattern": "^[0-9]+(-[0-9]+)?(, *[0-9]+(-[0-9]+)?)*$"},
                    {"type": "integer", "minimum": 0},
                ],
            },
            "networks": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Of a workload: the networks that have layers in the stage; told, not asked.",
            },
            "cluster": _text("Name of the cluster of the platform that the cores belong to."),
            "threads": {"type": "integer", "minimum": 1, "description": "Threads of the runtime."},
            "cores": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0},
                "minItems": 1,
                "uniqueItems": True,
                "description": "Core numbers in the kernel's counting, as many as threads.",
            },
            "kernels": {"enum": list(KERNELS), "description": "Kernel library [default]."},
            "device": {"enum": list(DEVICES), "description": "What kind of thing the cluster is [cpu]."},
            "host_cores": {
                "type": "array",
                "items": {"type": "integer", "minimum": 0},
                "description": "Of a stage on an accelerator: the cores that drive it.",
            },
            "file": _text("The stage's .tflite file, relative to this file."),
        },
        optional=("networks", "kernels", "device", "host_cores", "file"),
    )
    lane = _table(
        {
            "stages": {
                "type": "array",
                "minItems": 1,
                "items": stage,
                "description": "In the order in which frames pass them; together every layer once.",
            }
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Mapping of a model's layers onto cores",
        **_table(
            {
                "format": {"const": FORMAT},
                "version": {"const": VERSION},
                "model": _table(
                    {
                        "name": _text("Name of the model."),
                        "sha256": _text("Hash of the whole model's file.", pattern="^[0-9a-f]{64}$"),
                    }
                ),
                "platform": _text("Name of the platform."),
                "lanes": {
                    "type": "array",
                    "minItems": 1,
                    "items": lane,
                    "description": "Complete copies of the model on disjoint cores.",
                },
            }
        ),
    }


def _table(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def _text(description: str, **more: Any) -> dict[str, Any]:
    return {"type": "string", "description": description, **more}
