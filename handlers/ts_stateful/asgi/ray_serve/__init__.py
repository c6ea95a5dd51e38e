"""The front as an application of Ray Serve: each replica has engines of its own, and all share a store."""
