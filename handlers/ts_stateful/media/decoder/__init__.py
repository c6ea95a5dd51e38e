"""Decoding of images in processes that can do nothing else.

The modules `process` and `pool` are the engine's side, `main` and `sandbox` the decoder's.
"""
