"""Archives for TorchServe and SageMaker, made by torch-model-archiver."""

from ts_stateful.packing.archive import Contents, PackingFailed, write_archive

__all__ = ["Contents", "PackingFailed", "write_archive"]
