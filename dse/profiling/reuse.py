"""Costs that are known from files, so that only the rest is measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dse.costs import Cost, CostTable
from dse.errors import InputError
from dse.platforms import Link, Platform, Slot


@dataclass(frozen=True, slots=True)
class Known:
    """What some cost tables of one model know; of two that know the same, the later one counts.

    Parameters
    ----------
    tables
        Of this model.

    Raises
    ------
    InputError
        A table is predicted, or of a model with another number of layers.
    """

    tables: tuple[CostTable, ...] = ()

    def __post_init__(self) -> None:
        for table in self.tables:
            if not table.measured:
                raise InputError(
                    f"the cost table of {table.model_name} on {table.platform_name} is predicted;"
                    " only measured costs can be used beside measured ones"
                )
            if len(table.costs) != len(self.tables[0].costs):
                raise InputError(
                    f"the cost tables are of different models: {len(self.tables[0].costs)}"
                    f" and {len(table.costs)} layers"
                )

    def cost(self, layer: int, slot: Slot) -> Cost | None:
        """Return a known cost; a layer that is not known, or was not resolved, has none."""
        for table, column in self._columns(slot):
            cost = table.costs[layer][column]
            # An importer's "not resolved" says nothing of the slot; a refusal of the runtime does.
            if cost.median_ns is not None or (cost.reason and cost.source != "imported"):
                return cost
        return None

    def missing(self, slot: Slot, n_layers: int) -> tuple[int, ...]:
        """Return the layers without a known cost."""
        return tuple(layer for layer in range(n_layers) if self.cost(layer, slot) is None)

    def links(self, platform: Platform) -> tuple[Link, ...]:
        """Return the links when all between the clusters of a platform are known, else none."""
        known = [link for table in self.tables for link in table.links if not link.assumed]
        found = {(link.source, link.target): link for link in known}
        names = [cluster.name for cluster in platform.clusters]
        wanted = [(source, target) for source in names for target in names]
        return tuple(found[pair] for pair in wanted) if all(pair in found for pair in wanted) else ()

    def fill(self, table: CostTable, slots: Sequence[Slot]) -> CostTable:
        """Put what is known beside (and in place of) what was measured.

        Parameters
        ----------
        table
            What was measured, of some of the slots.
        slots
            Columns of the result.
        """
        if not self.tables:
            return table
        n_layers = len(table.costs)
        rows = []
        for layer in range(n_layers):
            row = []
            for slot in slots:
                cost = self.cost(layer, slot)
                if cost is None:
                    cost = table.costs[layer][table.slots.index(slot)]
                row.append(cost)
            rows.append(tuple(row))
        reused = {str(s): n for s in slots if (n := n_layers - len(self.missing(s, n_layers)))}
        origins = [
            {"platform": other.platform_name, **{k: v for k, v in other.conditions.items() if k in _ORIGIN}}
            for other in self.tables
        ]
        return dataclasses.replace(
            table,
            slots=tuple(slots),
            costs=tuple(rows),
            overhead_ns=tuple(self._source(slot, table).overhead_ns[self._at(slot, table)] for slot in slots),
            whole=tuple(self._source(slot, table).whole[self._at(slot, table)] for slot in slots),
            conditions={**table.conditions, "reused": {"layers": reused, "tables": origins}},
        )

    def _columns(self, slot: Slot) -> list[tuple[CostTable, int]]:
        return [(table, table.slots.index(slot)) for table in reversed(self.tables) if slot in table.slots]

    def _source(self, slot: Slot, table: CostTable) -> CostTable:
        """Return the table for what a column has besides layers: the measured one where there is one."""
        return table if slot in table.slots else self._columns(slot)[0][0]

    def _at(self, slot: Slot, table: CostTable) -> int:
        return self._source(slot, table).slots.index(slot)


_ORIGIN = ("method", "load", "kernels", "runtime", "runtime_version", "machine", "tool")
