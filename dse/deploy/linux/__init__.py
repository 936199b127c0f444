"""Bundles for Linux: a runner in one Python file, a native runner, an example of a service."""
