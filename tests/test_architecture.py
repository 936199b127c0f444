"""The direction of imports, and who may import what: walked over every file's syntax tree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A module may import modules of its own layer and of layers with a lower number.
LAYERS: dict[str, int] = {
    "dse": 0,
    "dse.errors": 0,
    "dse.units": 0,
    "dse.files": 0,
    "dse.progress": 0,
    "dse.graph": 1,
    "dse.platforms": 1,
    "dse.placement": 1,
    "dse.yaml_io": 1,
    "dse.corrections": 2,
    "dse.costs": 3,
    "dse.elsewhere": 3,
    "dse.config": 2,
    "dse.conditions": 2,
    "dse.detection": 2,
    "dse.graph_drawing": 2,
    "dse.inputs": 3,
    "dse.flatbuffer": 3,
    "dse.devices": 3,
    "dse.zoo": 4,
    "dse.pipeline": 4,
    "dse.problems": 4,
    "dse.mapping_check": 4,
    "dse.mapping_schema": 4,
    "dse.mapping_file": 4,
    "dse.results": 4,
    "dse.networks": 5,
    "dse.past_run": 5,
    "dse.comparing": 5,
    "dse.profiling": 5,
    "dse.validation": 5,
    "dse.machine": 6,
    "dse.variants": 6,
    "dse.doctor": 7,
    "dse.reports": 6,
    "dse.run_folder": 6,
    "dse.planning": 6,
    "dse.trials": 6,
    "dse.staging": 6,
    "dse.deploy": 6,
    "dse.answer": 6,
    "dse.measuring": 6,
    "dse.deciding": 6,
    "dse.learning": 6,
    "dse.rounds": 6,
    "dse.speed": 6,
    "dse.record": 6,
    "dse.costing": 6,
    "dse.cutting": 6,
    "dse.parting": 6,
    "dse.shaping": 4,
    "dse.packages": 6,
    "dse.workloads": 6,
    "dse.explore": 7,
    "dse.revalidate": 8,
    "dse.export": 8,
    "dse.sensitivity": 8,
    "dse.sweeps": 8,
    "dse.commands": 9,
    "dse.cli": 10,
    "dse.__main__": 11,
}
SOLE_IMPORTERS = {
    "yaml": {"dse.yaml_io"},
    "flatbuffers": {"dse.flatbuffer"},
    "optuna": {"solvers.black_box"},
    "click": {"dse.cli", "dse.commands"},
    "jinja2": {"dse.reports"},
}
SOLVERS_MAY_IMPORT = {"numpy", "networkx", "ortools", "optuna", "solvers"}
FORBIDDEN = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in ("dse", "solvers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            found.add(node.module)
            if node.module in ("dse", "solvers"):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(module: str) -> int:
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in LAYERS and (name != "dse" or module == "dse"):
            return LAYERS[name]
    pytest.fail(f"{module} has no place in the architecture: add it to LAYERS and to README")


MODULES = modules()


def test_there_are_modules():
    assert len(MODULES) > 20


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_imports_point_downwards(name, path):
    for target in imports(path):
        if target.split(".")[0] == "dse":
            assert not name.startswith("solvers"), f"{name} imports {target}: solvers know nothing of dse"
            assert layer(target) <= layer(name), f"{name} imports {target}, which is above it"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_only_named_modules_import_special_libraries(name, path):
    for target in imports(path):
        top = target.split(".")[0]
        assert top not in FORBIDDEN, f"{name} imports {top}"
        owners = SOLE_IMPORTERS.get(top)
        if owners is not None:
            assert any(name == owner or name.startswith(owner + ".") for owner in owners), (
                f"{name} imports {top}; only {sorted(owners)} may"
            )
        if name.split(".")[0] == "solvers" and top not in SOLVERS_MAY_IMPORT:
            import sys

            assert top in sys.stdlib_module_names, f"{name} imports {top}"
            assert top not in {"subprocess", "socket", "multiprocessing"}, f"{name} imports {top}"


@pytest.mark.parametrize(("name", "path"), MODULES, ids=[name for name, _ in MODULES])
def test_no_shell_and_no_giant_modules(name, path):
    text = path.read_text()
    assert len(text.splitlines()) < 1000, f"{name} is too long"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.keyword) and node.arg == "shell":
            pytest.fail(f"{name}:{node.value.lineno} uses shell=")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert name in {"dse.cli"} or name.startswith("dse.commands"), f"{name}: print outside the CLI"
