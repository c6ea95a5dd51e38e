"""TorchServe's gRPC interface, generated from `protos/`; every module but this one is written by protoc."""
