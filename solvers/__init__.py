"""Pure optimisation: mapping a layer graph onto the cores of a chip.

Knows nothing of models, files or machines.  See ``solvers.problem`` for the input,
``solvers.mapping`` for the output and ``solvers.evaluate`` for what is optimised.
"""
