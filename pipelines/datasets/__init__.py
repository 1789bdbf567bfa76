"""Datasets: a pure function of a range of the log, the code and a configuration, written with its proof.

`rows` is the canonical row, `build` makes a dataset from a store, `exporters` project its rows for others.
"""
