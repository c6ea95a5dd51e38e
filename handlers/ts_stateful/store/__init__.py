"""Stores that keep sessions beyond the processes that serve them: immutable bytes under keys, in files, Redis or S3."""
