"""The direction of imports: frontend -> process -> engines -> sessions -> session_log -> store -> protocol."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_PACKAGE = "ts_stateful"
_HANDLERS = Path(__file__).resolve().parents[3] / "handlers"

# The parts that each part may import; all may import modules at the package's top.
_MAY_IMPORT: dict[str, set[str]] = {
    "": {"client", "protocol"},  # the package itself: its public names
    "pb": set(),
    "protocol": set(),
    "config": {"protocol"},
    "store": {"protocol", "config"},
    "session_log": {"protocol", "store"},
    "media": {"protocol", "config"},
    "sessions": {"protocol"},
    "engine": {"protocol", "config", "session_log", "sessions", "store"},
    "cpu_kernels": set(),
    "language": {
        *(
            "cpu_kernels",
            "protocol",
            "config",
            "engine",
            "media",
            "session_log",
            "sessions",
            "store",
        ),
    },
    "recurrent": {
        *("cpu_kernels", "protocol", "config", "engine", "session_log", "sessions", "store"),
    },
    "process": {"protocol", "config", "engine", "store"},  # imports a kind of model by its name
    "principals": {"protocol", "config"},
    "frontend": {"protocol", "config", "principals", "process"},
    "client": {"pb", "protocol"},
    "packing": {"config"},
    "plan": {"protocol", "config"},
    "serving": {"process"},
    "torchserve": {"protocol", "process", "client", "doctor", "serving"},
    "asgi": {"pb", "protocol", "config", "frontend", "principals", "process", "serving"},
    "doctor": {"protocol", "config", "client"},
    "cli": {
        *("pb", "protocol", "config", "client", "packing", "plan", "doctor"),
        *("asgi", "process", "serving", "torchserve"),
    },
}
_TORCH = {"torch", "transformers", "safetensors", "tokenizers", "accelerate"}
_WITHOUT_TORCH = {"safetensors"}  # does not load torch; blobs have its format
# process: counts devices, sets threads
_MAY_IMPORT_TORCH = {"cpu_kernels", "language", "recurrent", "process"}
_ENGINES = {"engine", "language", "recurrent"}
_NEVER_TORCH = {"ts_stateful.language.scheduler"}
_NETWORK = {"httpx", "httpcore", "requests", "aiohttp", "urllib.request", "urllib3"}
_MAY_OPEN = {"media", "client", "principals"}  # principals: the key set that the operator names


def _modules() -> dict[str, ast.Module]:
    modules = {}
    for path in sorted((_HANDLERS / _PACKAGE).rglob("*.py")):
        parts = path.relative_to(_HANDLERS).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    return modules


MODULES = _modules()


def _imports_of(module: str) -> Iterator[str]:
    """Yield the full names of all imports of a module; `from a import b` gives `a.b` if that is a module, else `a`."""
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import; write the full name"
            source = node.module or ""
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield full if full in MODULES or source == "urllib" else source


IMPORTS = {module: [*_imports_of(module)] for module in MODULES}


def _part(module: str) -> str:
    """Return a module's part: its folder or, at the top level, its own name."""
    return [*module.split("."), ""][1]


def _is_leaf(part: str) -> bool:
    return part not in _MAY_IMPORT


def _may_import(part: str, imported: str) -> bool:
    other = _part(imported)
    return other == part or _is_leaf(other) or other in _MAY_IMPORT.get(part, set())


def test_imports_follow_the_direction() -> None:
    """A module imports only lower parts and leaves."""
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for name in names
        if name.split(".")[0] == _PACKAGE and not _may_import(_part(module), name)
    ]
    assert wrong == []


def test_torch_stays_in_the_engine() -> None:
    """Accounting, stores, the handler and the client run without torch."""
    wrong = []
    for module, names in IMPORTS.items():
        if _part(module) in _MAY_IMPORT_TORCH and module not in _NEVER_TORCH:
            continue
        loaded = {name for name in names if name.split(".")[0] in _TORCH}
        if _part(module) == "session_log":
            loaded -= _WITHOUT_TORCH
        wrong += [f"{module} imports {name}" for name in loaded]
    assert wrong == []


def test_only_the_frontend_imports_torchserve() -> None:
    """No other part imports `ts`."""
    importers = {
        _part(module)
        for module, names in IMPORTS.items()
        if "ts" in {name.split(".")[0] for name in names}
    }
    assert importers == {"frontend"}


def test_only_media_opens_urls_and_images() -> None:
    """On the server, one part reads bytes that clients point to, and one the key set of the configuration."""
    wrong = []
    for module, names in IMPORTS.items():
        if _part(module) in _MAY_OPEN:
            continue
        network = [n for n in names if any(n == one or n.startswith(f"{one}.") for one in _NETWORK)]
        wrong += [f"{module} imports {name}" for name in network]
        wrong += [
            f"{module}:{node.lineno} opens an image"
            for node in ast.walk(MODULES[module])
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "Image.open"
        ]
    assert wrong == []


def test_only_the_entry_of_the_engine_process_imports_the_engine() -> None:
    """Worker and engine share messages, not code."""
    importers = {
        module
        for module in MODULES
        if _part(module) == "process"
        and any(_part(name) in _ENGINES for name in IMPORTS[module] if name.startswith(_PACKAGE))
    }
    assert importers == {"ts_stateful.process.engine.main"}


def test_messages_import_only_the_protocol() -> None:
    """The messages between worker and engine contain requests, events and statistics only."""
    own = {name for name in IMPORTS["ts_stateful.process.messages"] if name.startswith(_PACKAGE)}
    assert own <= {
        "ts_stateful.process.blocks",
        "ts_stateful.protocol.requests",
        "ts_stateful.protocol.events",
        "ts_stateful.protocol.operations",
        "ts_stateful.protocol.stats",
    }


def test_every_module_has_a_docstring() -> None:
    """Unless it is empty or generated."""
    written = {name: tree for name, tree in MODULES.items() if tree.body and _part(name) != "pb"}
    assert [name for name, tree in written.items() if not ast.get_docstring(tree)] == []


@pytest.mark.parametrize(
    "part",
    [
        "sessions",
        "session_log",
        "store",
        "client",
        "cli",
        "torchserve",
        "config",
        "plan",
        "protocol",
    ],
)
def test_torch_is_not_loaded_indirectly(part: str) -> None:
    """The import of these parts loads no torch through other modules."""
    names = [module for module in MODULES if _part(module) == part]
    names += sorted(_NEVER_TORCH) if part == "sessions" else []
    code = f"import sys, {', '.join(names) or 'os'}; sys.exit('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_HANDLERS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"importing {names} loads torch\n{done.stderr}"
