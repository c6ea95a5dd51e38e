"""The engine alone on a GPU, beside the memory's bandwidth, `generate` and `transformers`' own continuous batching."""
