"""The benchmark: what serving with sessions costs beside the bare forward pass, and what it saves.

`python -m benchmarks --help`, or `make bench`. `cli` says what is measured; every stage is a module of `stages`.
"""
