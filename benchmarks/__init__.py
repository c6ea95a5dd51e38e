"""The benchmark: the cost of serving with sessions beside the bare forward pass, and its savings.

Run `python -m benchmarks --help`, or `make bench`. Every stage is a module of `stages`.
"""
