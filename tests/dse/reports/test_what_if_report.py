"""The table and the JSON of what-if."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dse.reports.what_if_report import what_if_json, what_if_text
from solvers.mapping import Family, Mapping, Solution, Status
from solvers.what_if import Known, LayerGain, Resource, ResourceGain, Step, WhatIf

NOTHING = Mapping(())
INF = float("inf")


def step(change, gain, same=0.0, at_most=None, known=Known.SEARCHED):
    return Step(change, gain, same, at_most, known, NOTHING)


def exact(*gains):
    return steps(*gains, known=Known.EXACT)


def steps(*gains, known=Known.SEARCHED):
    return tuple(step(change, gain, gain / 2, 1.0, known) for change, gain in zip((0.1, 0.5, 1.0), gains))


def found(layers=(), resources=(), complete=True):
    base = Solution("lanes", Status.OPTIMAL, Family.ALL, NOTHING, None, None)
    return WhatIf(base, tuple(layers), tuple(resources), complete, 7)


def test_the_table_shows_what_is_worth_most(result_of):
    result = result_of(measured=False)
    slots = result.costs.slots
    layers = [LayerGain(7, (0, len(slots) - 1), steps(0.012, 0.08, 0.2215))]
    layers += [LayerGain(n, (0,), steps(0.0, 0.01, 0.02)) for n in range(8, 22)]
    layers += [LayerGain(n, (0,), steps(0.0, 0.0, 0.0, known=Known.PROVED)) for n in (0, 1)]
    cores = ResourceGain(Resource.CORE, 0, (step(1, 0.125),))
    memory = ResourceGain(Resource.MEMORY, None, (step(1.1, 0.0), step(INF, 0.5)))
    idle = ResourceGain(Resource.MEMORY, 1, (step(1.1, 0.0), step(INF, 0.0)))
    text = what_if_text(result, found(layers, [memory, cores, idle]), slots)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in lines if "takes" in line)
    assert [word in head for word in (" -10 %", " -50 %", " -100 %", " unmoved")] == [True] * 4
    (row,) = (line for line in lines if line.strip().startswith("7 "))
    assert "_8/out" in row
    assert row.split()[-4:] == ["+11", "%", "98", "%"]  # the bound is 100 %, 1.2 % are found
    assert [word in row for word in ("+1.2 %", "+8.0 %", "+22 %")] == [True] * 3
    assert "... and 3 more, +2.0 % and less each" in text
    assert "2 of 17 layers gain less than 0.05 % on their own, even for free" in text
    assert [line.split() for line in lines if "core of" in line] == [
        ["1", "more", "core", "of", "big", "+12", "%", "-"]
    ]
    assert "memory in all times 1.1" in text
    (unlimited,) = (line for line in lines if "memory in all without limit" in line)
    assert unlimited.split()[-3:] == ["+50", "%", "-"]
    assert "LITTLE times 1.1" not in text  # nothing gained without any limit: one line is enough
    assert "at least" not in text


def test_what_was_not_searched_is_marked(result_of):
    result = result_of(measured=False)
    layers = [LayerGain(3, (0,), steps(0.1, 0.2, 0.3, known=Known.LEFT_OUT))]
    text = what_if_text(result, found(layers, complete=False), result.costs.slots)
    assert "> +30 %" in text
    assert ">: at least; the time was up" in text


def test_nothing_to_gain(result_of):
    result = result_of(measured=False)
    text = what_if_text(result, found([LayerGain(3, (0,), exact(0.0, 0.0, 0.0))]), result.costs.slots)
    assert "No layer gains anything on its own, even for free" in text
    text = what_if_text(result, found([LayerGain(3, (0,), steps(0.0, 0.0, 0.0))]), result.costs.slots)
    assert "No layer gains anything on its own that was found" in text


def test_exact_gains_need_no_column(result_of):
    result = result_of(measured=False)
    layers = [LayerGain(3, (0,), exact(0.1, 0.2, 0.3)), LayerGain(4, (0,), exact(0.0, 0.0, 0.0))]
    cores = ResourceGain(Resource.CORE, 0, (step(1, 0.125, known=Known.PROVED),))
    lines = what_if_text(result, found(layers, [cores]), result.costs.slots).splitlines()
    (head,) = (line for line in lines if "takes" in line)
    assert "gap" not in head
    assert any(line.strip().startswith(f"3 {result.graph.layers[3].name}") for line in lines)
    assert lines[-1].startswith("All exact: ")
    layers[0] = LayerGain(3, (0,), (*exact(0.1, 0.2), step(1.0, 0.3, at_most=0.301)))
    lines = what_if_text(result, found(layers, [cores]), result.costs.slots).splitlines()
    (row,) = (line for line in lines if line.strip().startswith("3 "))
    assert row.endswith(" 0.1 %")
    assert [line.split(":")[0] for line in lines[-2:]] == ["exact", "gap"]


def test_an_interruption_is_not_called_lack_of_time(result_of):
    result = result_of(measured=False)
    layers = [LayerGain(3, (0,), steps(0.1, 0.2, 0.3, known=Known.LEFT_OUT))]
    ended = replace(found(layers, complete=False), interrupted=True)
    text = what_if_text(result, ended, result.costs.slots)
    assert text.endswith(">: at least; the search was interrupted")
    data = what_if_json(result, ended, result.costs.slots)
    assert (data["interrupted"], data["complete"]) == (True, False)


def test_names_can_not_steer_the_terminal(nasty):
    text = what_if_text(nasty, found([LayerGain(3, (0,), steps(0.1, 0.2, 0.3))]), nasty.costs.slots)
    assert all(char == "\n" or char.isprintable() for char in text)
    assert max(map(len, text.splitlines())) <= 80


def test_json_says_the_same_and_is_strict(result_of):
    result = result_of(measured=False)
    layers = [LayerGain(7, (0,), steps(0.01, 0.08, INF))]
    memory = ResourceGain(Resource.MEMORY, 1, (step(1.1, 0.0, known=Known.PROVED), step(INF, 0.5)))
    data = what_if_json(result, found(layers, [memory]), result.costs.slots)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    (layer,) = data["layers"]
    assert (layer["layer"], layer["name"], layer["slots"]) == (7, "net/block_8/out", ["1 big"])
    assert [entry["gain"] for entry in layer["steps"]] == [0.01, 0.08, None]
    assert [entry["cheaper_by"] for entry in layer["steps"]] == [0.1, 0.5, 1.0]
    (resource,) = data["resources"]
    assert (resource["resource"], resource["cluster"]) == ("memory", "LITTLE")
    assert [entry["times"] for entry in resource["steps"]] == [1.1, None]
    assert [entry["known"] for entry in resource["steps"]] == ["proved", "searched"]
    assert [entry["gap"] for entry in resource["steps"]] == [0, None]
    assert layer["steps"][0]["gap"] == pytest.approx(2 / 1.01 - 1)
    assert data["complete"] is True
