"""Pure optimisation: mapping a layer graph onto the cores of a chip.

Knows nothing of models, files or machines.  See ``solvers.problem`` for the input,
``solvers.mapping`` for the output, ``solvers.evaluate`` for what is optimised and
``solvers.registry.solve`` for how.  OR-Tools is imported inside functions of ``solvers.bounds`` (three and
more clusters) and of the models for CP-SAT only; every other module of the searches needs numpy and networkx.
"""
