"""The locks in deploy/locks, and what is made of them."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools import sbom

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# torch pins the CUDA libraries of its wheel itself.
OF_TORCH = ("nvidia-", "cuda-")


def on(python: str, machine: str = "x86_64") -> dict[str, str]:
    """Return the environment of an image with this Python."""
    return {
        **sbom.PLATFORM,
        "python_version": python,
        "python_full_version": f"{python}.9",
        "platform_machine": machine,
    }


def constrained(environment: dict[str, str]) -> dict[str, str]:
    """Return the versions of constraints.txt by package."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        requirement = Requirement(line) if line[:1].isalnum() else None
        if requirement and (requirement.marker is None or requirement.marker.evaluate(environment)):
            found[str(canonicalize_name(requirement.name))] = str(requirement.specifier)
    return found


def direct() -> list[Requirement]:
    """Return what setup.cfg asks for in a node's image: the requirements of the extras that the Makefile names."""
    (line,) = re.findall(r"^NODE_EXTRAS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    texts = [parser["options"]["install_requires"]]
    texts += [parser["options.extras_require"][extra] for extra in line.split()]
    lines = "\n".join(texts).splitlines()
    return [Requirement(text) for text in lines if text and not text.startswith("#")]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
def test_the_images_install_the_versions_that_were_tested(python: str, machine: str) -> None:
    """Every package has the version of constraints.txt, and everything that setup.cfg asks for is there."""
    environment = on(python, machine)
    entries = sbom.locked(sbom.IMAGES["sagemaker"], environment)
    versions = {name: f"=={sbom.pinned(entry)}" for name, entry in entries.items()}
    tested = constrained(environment)
    for name, version in versions.items():
        assert tested.get(name) == version or name.startswith(OF_TORCH), name
    for requirement in [*direct(), Requirement("sagemaker-pytorch-inference")]:
        if requirement.marker is not None and not requirement.marker.evaluate(environment):
            continue
        name = canonicalize_name(requirement.name)
        assert versions[name].removeprefix("==") in requirement.specifier


@pytest.mark.parametrize("name", ["build", "node", "sagemaker"])
def test_every_package_has_a_hash(name: str) -> None:
    """`--require-hashes` would refuse the file otherwise."""
    text = (sbom.LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        assert re.fullmatch(
            r"[a-z0-9._-]+==\S+( ; [^\\#]+?)?( +--hash=sha256:[0-9a-f]{64})+ *", entry
        )


def test_no_package_is_locked_twice() -> None:
    """The images install several locks at once; only setuptools, which builds, is in two."""
    names = [
        set(
            re.findall(r"^([a-z0-9._-]+)==", (sbom.LOCKS / f"{name}.txt").read_text(), re.MULTILINE)
        )
        for name in ("build", "node", "sagemaker")
    ]
    assert names[0] & names[1] == names[0] == {"setuptools"}
    assert not names[1] & names[2]


@pytest.mark.parametrize(
    ("folder", "locks"),
    [("kubernetes", ["build", "node"]), ("sagemaker", ["build", "node", "sagemaker"])],
)
def test_the_images_install_nothing_without_a_hash(folder: str, locks: list[str]) -> None:
    """The package itself is built from the checkout, without a download."""
    text = (ROOT / "deploy" / folder / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]+)", text)
    assert len(installs) == 3
    for options in installs[:-1]:
        assert "--require-hashes" in options
    assert re.findall(r"-r (\w+)\.txt", text) == locks
    assert all("--no-build-isolation" in options for options in installs[1:])
    assert "--no-deps" in installs[-1]


def test_the_bill_of_materials_lists_the_lock(tmp_path: Path) -> None:
    """It is valid CycloneDX, and each component has its version and the hashes of its files."""
    bill = json.loads(sbom.write_sbom("node", tmp_path).read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "torchserve-stateful"
    entries = sbom.locked(sbom.IMAGES["node"], sbom.PLATFORM)
    listed = {one["name"]: one for one in bill["components"]}
    assert {name: one["version"] for name, one in listed.items()} == {
        name: sbom.pinned(entry) for name, entry in entries.items()
    }
    for name, one in listed.items():
        (reference,) = one["externalReferences"]
        hashes = {hashed["content"] for hashed in reference["hashes"]}
        assert hashes == set(re.findall(r"--hash=sha256:(\w+)", entries[name]))


def test_the_notices_have_the_texts_of_licenses() -> None:
    """A package that is not installed here is listed too."""
    entries = sbom.locked(["node"], sbom.PLATFORM)
    known = {"pillow": entries["pillow"], "absent-package": "absent-package==1.0"}
    text = "\n".join(sbom.notices(known))
    assert "absent-package 1.0\n\nNot installed" in text
    assert "License: MIT-CMU" in text
    assert "Permission to use, copy, modify" in text
