"""The stages of the benchmark: modules with a title and a `run`."""
