"""Well-known architectures, written as .tflite files with seeded random weights.

``ZOO`` lists them, ``build`` gives the records of a file and ``build_file`` writes one.  The weights
are random but sized so that outputs move with the input (see ``scaling``).
"""

from dse.zoo.entries import Parameter, ZooEntry
from dse.zoo.registry import ZOO, build, build_file, resolve

__all__ = ["ZOO", "Parameter", "ZooEntry", "build", "build_file", "resolve"]
