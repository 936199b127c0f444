"""Sweeps: a study expanded into jobs, run on Dask, its results kept in a database.

``definition`` reads a sweep file, ``expansion`` makes its jobs, ``store`` keeps them, ``clusters``
starts workers, ``driver`` hands jobs out and writes down what comes back.
"""
