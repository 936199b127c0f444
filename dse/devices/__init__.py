"""Machines that run stages: the small program that runs on a device, and its supervision."""
