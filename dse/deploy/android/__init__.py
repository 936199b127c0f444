"""Bundles for Android: a throughput check over adb, and the sources of the native runner."""
