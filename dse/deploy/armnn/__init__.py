"""Stages for Arm NN: a runner for pyarmnn, command lines for ExecuteNetwork, what the parser takes."""
