"""Where sessions outlive the processes that serve them: immutable entries and blobs, as bytes under keys.

Knows files, Redis and S3; never torch, engines or TorchServe.
"""
