"""Imported profiles as cost tables, and tables of several slots put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from dse.costs import Cost, CostTable
from dse.errors import InputError
from dse.graph import LayerGraph
from dse.platforms import Slot
from dse.profiling.importers.matching import Imported
from dse.profiling.stats import median, median_interval


def table_of(
    graph: LayerGraph, imported: Imported, slot: Slot, *, model_hash: str, platform_name: str
) -> CostTable:
    """Return a cost table with one column.

    A layer that is not resolved has no cost on this slot, and the reason; so a search can not
    place it there by mistake.

    Parameters
    ----------
    graph
        The model.
    imported
        What the importer found.
    slot
        On what the other tool ran the model.
    model_hash, platform_name
        Which model and platform.
    """
    why = "; ".join(imported.unresolved) or f"{imported.tool} has no row for it"
    rows = []
    for layer in graph.layers:
        samples = imported.samples_ns.get(layer.index)
        note = imported.notes.get(layer.index, "")
        if samples is None:
            cost = Cost(None, (), "imported", f"not resolved: {why}")
        else:
            cost = Cost(
                median(samples) if samples else 0, samples, "imported", note, median_interval(samples)
            )
        rows.append((cost,))
    return CostTable(
        model_hash=model_hash,
        model_name=graph.name,
        platform_name=platform_name,
        slots=(slot,),
        costs=tuple(rows),
        overhead_ns=(0,),
        whole=(None,),
        conditions={"method": "imported", "tool": imported.tool, "unresolved": list(imported.unresolved)},
    )


def merge_tables(tables: Sequence[CostTable]) -> CostTable:
    """Put the columns of several tables of one model side by side.

    A slot that occurs again replaces the earlier column, so a new measurement corrects an old one.

    Raises
    ------
    InputError
        There is no table, or they are of different models.
    """
    if not tables:
        raise InputError("expected at least one cost table to merge, got none")
    first = tables[0]
    for table in tables[1:]:
        if len(table.costs) != len(first.costs) or (
            table.model_hash and first.model_hash and table.model_hash != first.model_hash
        ):
            raise InputError(
                f"the cost tables are of different models: {first.model_name} ({len(first.costs)} layers) and"
                f" {table.model_name} ({len(table.costs)} layers)"
            )
    source: dict[Slot, tuple[CostTable, int]] = {}
    for table in tables:
        for column, slot in enumerate(table.slots):
            source[slot] = (table, column)
    links = {(link.source, link.target): link for table in tables for link in table.links}
    return dataclasses.replace(
        first,
        platform_name=tables[-1].platform_name,
        slots=tuple(source),
        costs=tuple(
            tuple(table.costs[layer][column] for table, column in source.values())
            for layer in range(len(first.costs))
        ),
        overhead_ns=tuple(table.overhead_ns[column] for table, column in source.values()),
        whole=tuple(table.whole[column] for table, column in source.values()),
        links=tuple(links.values()),
        conditions={"method": "merged", "parts": [table.conditions for table in tables]},
    )
