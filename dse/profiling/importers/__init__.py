"""Profiles of other tools, as costs of layers.

Each importer returns an ``Imported``: what could be resolved to layers, and in words what could
not.  Nothing is ever spread evenly over layers.
"""

from dse.profiling.importers.armnn import read_armnn
from dse.profiling.importers.benchmark_model import read_benchmark_csv, read_benchmark_proto
from dse.profiling.importers.generic import ColumnMap, read_csv
from dse.profiling.importers.matching import Imported, Row
from dse.profiling.importers.tables import merge_tables, table_of

__all__ = [
    "ColumnMap",
    "Imported",
    "Row",
    "merge_tables",
    "read_armnn",
    "read_benchmark_csv",
    "read_benchmark_proto",
    "read_csv",
    "table_of",
]
