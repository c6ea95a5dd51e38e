"""The benchmark: the cost of serving with sessions beside the bare forward pass, and its savings.

Run `python -m benchmarks --help`, or `make bench`. Every stage is a module of `stages`.
"""

import logging

# What these say when they are imported belongs to no measurement.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
