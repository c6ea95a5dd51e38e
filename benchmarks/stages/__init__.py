"""What is measured: a module for each stage, with a title and a `run`."""
