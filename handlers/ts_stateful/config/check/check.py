"""All rules, applied to a configuration or a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from ts_stateful.config.adapters import read_adapter
from ts_stateful.config.check.access import check_access
from ts_stateful.config.check.budgets import check_budgets, check_model
from ts_stateful.config.check.checkpoint import check_checkpoint
from ts_stateful.config.check.finding import Finding, error, warning
from ts_stateful.config.check.modes import check_modes
from ts_stateful.config.check.places import check_places
from ts_stateful.config.check.split import check_device, check_devices, check_split
from ts_stateful.config.check.states import check_states
from ts_stateful.config.check.template import check_chat_template, check_template_file
from ts_stateful.config.check.timing import check_timing
from ts_stateful.config.document import parse_yaml
from ts_stateful.config.edit import completed
from ts_stateful.config.given_model import expand_home
from ts_stateful.config.manifest import CONFIG
from ts_stateful.config.schema import Config, ConfigError, HandlerConfig, load_config
from ts_stateful.config.sizes import TransformerSize
from ts_stateful.protocol.unknown import similar

__all__ = ["check_config", "check_file", "check_names", "read_settings"]

# Of TorchServe 0.12.0's `ModelConfig`, and of this package.
_KNOWN = (
    *("minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout"),
    *("startupTimeout", "deviceType", "deviceIds", "parallelLevel", "parallelType", "torchrun"),
    *("maxRetryTimeoutInSec", "clientTimeoutInMills", "jobQueueSize", "useJobTicket", "useVenv"),
    *("continuousBatching", "sequenceBatching", "asyncCommunication", "maxNumSequence"),
    *("maxSequenceJobQueueSize", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "handler"),
    *("pippy", "deepspeed", "pt2", "micro_batching", "runtimeType"),
)


def check_config(
    config: Config, model: TransformerSize | None = None, *, torchserve: bool = True
) -> list[Finding]:
    """Apply all rules, and return errors first. Rules about bytes need the sizes of the language model.

    Without `torchserve`, leave out what matters to its frontend alone.
    """
    findings = [*check_access(config), *check_device(config.engine)]
    if torchserve:
        findings += [*check_modes(config.frontend), *check_places(config), *check_timing(config)]
    if config.state is not None:
        findings += check_states(config.frontend, config.state)
    else:
        findings += [*check_budgets(config.handler), *_check_safety(config.handler)]
        findings += [*check_devices(config.handler), *check_chat_template(config.handler)]
        findings += check_model(config, model) if model is not None else []
    return sorted(findings, key=lambda finding: finding.severity != "error")


def check_file(
    path: Path, model: TransformerSize | None = None, model_folder: Path | None = None
) -> list[Finding]:
    """Apply all rules to a `model-config.yaml`; a file that cannot be read or parsed is a finding too.

    Keys that are left out count as `completed` sets them.
    The model's folder is `model_folder`, or that of `handler.model` if it is on this machine.
    """
    document = _document(path)
    if isinstance(document, Finding):
        return [document]
    try:
        config = load_config(completed(document))
        findings = [*check_config(config, model), *_check_adapters(config.handler, path.parent)]
        findings += check_names(document)
        if config.state is None:
            findings += check_template_file(config.handler, path.parent)
            folders = (path.parent / config.handler.model, expand_home(config.handler.model))
            found = model_folder or next(filter(Path.is_dir, folders), None)
            if found is not None and found.is_dir():  # or a config.json alone
                has_template = config.handler.chat_template is not None
                findings = [*check_checkpoint(found, has_template=has_template), *findings]
                if config.handler.tensor_parallel > 1:
                    findings += check_split(found, config.handler.tensor_parallel)
        return sorted(findings, key=lambda finding: finding.severity != "error")
    except ConfigError as reason:
        message = str(reason).removeprefix(f"{CONFIG}: ")
        return [error(str(path), message, "see docs/configuration.md")]


def read_settings(path: Path | None) -> dict[str, Any]:
    """Read the mapping in a YAML file, or raise `ConfigError`; without a file it is empty."""
    document = {} if path is None else _document(path)
    if isinstance(document, Finding):
        raise ConfigError(document.reason)
    return document


def _document(path: Path) -> dict[str, Any] | Finding:
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as reason:
        return error(str(path), f"cannot be read: {reason}", "give a readable file")
    except yaml.YAMLError as reason:
        return error(str(path), f"is not a valid YAML file: {reason}", "correct it")
    if not isinstance(document, dict | None):
        return error(str(path), "is not a mapping of keys to values", "see model-config.yaml")
    return document or {}


def check_names(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Find keys that are similar to a known one; others may be of a handler."""
    for key in document:
        if key not in _KNOWN and (remedy := similar(str(key), _KNOWN)):
            yield warning(
                str(key), f"there is no such key, so it has no effect{remedy}", "correct its name"
            )


def _check_safety(handler: HandlerConfig) -> Iterator[Finding]:
    """Find settings that make a server trust others more than it must."""
    if handler.trust_remote_code:
        yield warning(
            "handler.trustRemoteCode",
            "runs code that comes with the model",
            "leave it out unless you have read that code",
        )
    if "*" in handler.allowed_origins:
        yield warning(
            "handler.allowedOrigins",
            "every web page that a user of this network opens can use the server",
            "name the origins of your own pages",
        )
    if "http" in handler.media.allowed_schemes:
        yield warning(
            "handler.media.allowedSchemes",
            "over `http`, the network can read and change images",
            "allow https and data only",
        )
    store = urlsplit(handler.store.url or "")
    if store.scheme == "s3" and store.netloc in handler.media.allowed_buckets:
        yield warning(
            "handler.media.allowedBuckets",
            "this bucket also holds the sessions, so a client could request images of other sessions",
            "keep public images in a separate bucket",
        )
    if handler.media.allow_private_addresses:
        yield warning(
            "handler.media.allowPrivateAddresses",
            "clients can make the server read from this machine and its network, cloud metadata included",
            "leave it out, or name the hosts in allowedHosts",
        )


def _check_adapters(handler: HandlerConfig, folder: Path) -> Iterator[Finding]:
    """Find adapters that the engine would refuse; relative paths are looked for in `folder`, that of the configuration."""
    for name, value in handler.adapters.items():
        key = f"handler.adapters: {name}"
        place = folder / expand_home(value)
        if not place.is_dir():
            yield warning(
                key,
                f"{value} is not a folder here",
                "ignore this if it is in the archive (`ts-stateful pack --files`), or where the server runs",
            )
            continue
        try:
            read_adapter(name, place)
        except ConfigError as reason:
            yield error(
                key,
                str(reason).removeprefix(f"{key}: "),
                "docs/serve.md has what an adapter may change",
            )
