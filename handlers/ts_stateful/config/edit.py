"""Edits of a model-config.yaml for another model or profile, which `archive.sh` packs.

Comments of the original are lost. A configuration with errors (`config.check`) is refused before packing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ts_stateful.config.check import check_checkpoint, check_config
from ts_stateful.config.schema import ConfigError, load_config
from ts_stateful.protocol.profile import TORCHSERVE_PROFILES, Profile

__all__ = ["edited", "main"]

_PROFILE_KEYS = {
    Profile.CONTINUOUS: "continuousBatching",
    Profile.SEQUENCE: "sequenceBatching",
    Profile.ASYNC: "asyncCommunication",
}


def edited(
    document: Mapping[str, Any], *, model: str | None = None, profile: Profile | None = None
) -> dict[str, Any]:
    """Return a copy for `model` (`handler.model`) and `profile`; None keeps the old value."""
    result = dict(document)
    if model is not None:
        result["handler"] = {**(result.get("handler") or {}), "model": model}
    if profile is not None:
        for key in _PROFILE_KEYS.values():
            result.pop(key, None)
        result[_PROFILE_KEYS[profile]] = True
        result["minWorkers"] = result["maxWorkers"] = 1
    if profile is Profile.ASYNC:
        result["batchSize"] = 1  # a larger batch hangs in this mode
    if profile is Profile.SEQUENCE:
        # Every open session holds a place in the batch; a session without one would wait for ever. One place stays free, or
        # TorchServe's own tasks would have no thread while all sessions are open.
        batch_size = int(result.get("batchSize", 1))
        sessions = min(int(result.get("maxNumSequence") or batch_size), batch_size)
        result["maxNumSequence"], result["batchSize"] = sessions, max(batch_size, sessions + 1)
        result.setdefault("sequenceMaxIdleMSec", 600_000)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m ts_stateful.config.edit`: the edited file to standard output, findings to standard error."""
    options = _parser().parse_args(arguments)
    profile = Profile(options.profile) if options.profile else None
    try:
        document = yaml.safe_load(options.file.read_text()) or {}
        document = edited(document, model=options.model, profile=profile)
        config = load_config(document)
        findings = check_config(config)
        if options.checkpoint is not None and config.state is None:
            has_template = config.handler.chat_template is not None
            findings += check_checkpoint(options.checkpoint, has_template=has_template)
    except (OSError, yaml.YAMLError, ConfigError, TypeError, ValueError) as error:
        sys.stderr.write(f"error: {options.file}: {error}\n")
        return 1
    for finding in findings:
        sys.stderr.write(f"{finding}\n")
    if any(finding.severity == "error" for finding in findings):
        return 1
    if options.handler:
        entry = "state_handler.py" if config.state is not None else "generation_handler.py"
        sys.stdout.write(f"{entry}\n")
    else:
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ts_stateful.config.edit",
        description="Print a model-config.yaml for another model or profile.",
    )
    parser.add_argument("file", type=Path, help="the model-config.yaml to edit")
    parser.add_argument(
        "--model", help="handler.model: a folder in the archive, a path or a hub id"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="the model's folder on this machine, to be checked"
    )
    parser.add_argument("--profile", choices=[profile.value for profile in TORCHSERVE_PROFILES])
    parser.add_argument(
        "--handler",
        action="store_true",
        help="print the file name of the archive's entry point instead",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
