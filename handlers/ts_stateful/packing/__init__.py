"""Archives for TorchServe and SageMaker, made by torch-model-archiver."""

from ts_stateful.packing.archive import Contents, PackingFailed, write_archive
from ts_stateful.packing.manifest import name_in_archive

__all__ = ["Contents", "PackingFailed", "name_in_archive", "write_archive"]
