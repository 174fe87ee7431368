"""What a user gets by installing: a light import, the names we promise, and every file the library needs."""

from __future__ import annotations

import email.message
import email.parser
import json
import re
import subprocess
import sys
import tarfile
import tomllib
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

import stepfast
from tests import hygiene

ROOT = hygiene.ROOT
PACKAGE = ROOT / "src" / "stepfast"
# Each folder that is a distribution of its own, and the name of it.
DISTRIBUTIONS: dict[str, Path] = {
    tomllib.loads(file.read_text(encoding="utf-8"))["project"]["name"]: file.parent
    for file in (ROOT / "pyproject.toml", *sorted(ROOT.glob("adapters/*/pyproject.toml")))
}

IMPORT_LIMIT_MS = 150.0
IMPORT_RUNS = 7
# Optional, or slow to import: loaded by whoever uses them, when they use them.
HEAVY = {
    "cryptography",
    "dbos",
    "httpx",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "rich",
    "starlette",
    "zstandard",
}

IMPORT_PROBE = """
import json, sys, time
started = time.process_time()
{statement}
elapsed = time.process_time() - started
print(json.dumps({{"ms": elapsed * 1000, "modules": sorted({{name.partition(".")[0] for name in sys.modules}})}}))
"""
FRONT_DOOR = "from stepfast import Stepfast"
# What a small program imports anyhow: the yardstick for the speed of this machine in this minute.
YARDSTICK = "import asyncio, sqlite3, logging, inspect, hashlib, uuid"
FRONT_DOOR_RATIO = 3.0


def fresh_import(statement: str = FRONT_DOOR) -> tuple[float, set[str]]:
    """Import in a new interpreter: the milliseconds of processor time it took, and the top-level modules loaded."""
    probe = subprocess.run(
        [sys.executable, "-c", IMPORT_PROBE.format(statement=statement)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer = json.loads(probe.stdout)
    return float(answer["ms"]), set(answer["modules"])


def test_importing_stepfast_loads_no_optional_or_heavy_module() -> None:
    _, modules = fresh_import()

    assert modules & HEAVY == set()


def test_importing_stepfast_takes_less_than_150_ms() -> None:
    # Processor time, the fastest of several: a busy machine slows some runs, nothing makes one faster than it is.
    fastest = min(fresh_import("import stepfast")[0] for _ in range(IMPORT_RUNS))

    print(f"import stepfast: {fastest:.1f} ms (fastest of {IMPORT_RUNS})")
    assert fastest < IMPORT_LIMIT_MS


def test_the_front_door_costs_little_more_than_the_standard_library_it_uses() -> None:
    pairs = [(fresh_import(FRONT_DOOR)[0], fresh_import(YARDSTICK)[0]) for _ in range(IMPORT_RUNS)]
    door, yardstick = min(door for door, _ in pairs), min(yardstick for _, yardstick in pairs)

    print(f"{FRONT_DOOR}: {door:.1f} ms, {door / yardstick:.2f} x {YARDSTICK}")
    assert door < FRONT_DOOR_RATIO * yardstick


def test_every_promised_name_is_there() -> None:
    missing = [name for name in stepfast.__all__ if not hasattr(stepfast, name)]

    assert missing == []
    assert len(stepfast.__all__) == len(set(stepfast.__all__)), "a name stands twice in __all__"


def test_every_public_name_is_promised() -> None:
    public = {
        name
        for name in dir(stepfast)
        if not name.startswith("_")
        and name != "annotations"
        and not isinstance(getattr(stepfast, name), types.ModuleType)
    }

    assert public - set(stepfast.__all__) == set()


def test_no_tracked_file_names_a_registry_or_a_machine_path() -> None:
    found = [complaint for path in hygiene.tracked_files() for complaint in hygiene.complaints(path)]

    assert found == []


def test_the_hygiene_check_finds_what_it_looks_for() -> None:
    assert hygiene.REGISTRY_HOSTS.search("--index-url https://py" + "pi.org/simple")
    assert hygiene.MACHINE_PATHS.search("open('/ho" + "me/someone/notes.txt')")
    assert not hygiene.MACHINE_PATHS.search("https://example.org/wo" + "rk/item")


def test_the_hygiene_check_finds_what_an_adapter_may_not_import() -> None:
    found = hygiene.private_imports(
        "from stepfast import Stepfast, threads\n"
        "from stepfast.threads import PutThread\n"
        "from stepfast.cli.plugin import command\nfrom stepfast.cli import plugin\n"
        "from stepfast.stores.sqlite import SqliteStore\n"
        "from stepfast import stores\n"
        "import stepfast.server\n"
        "from .own import thing\n"
    )

    assert list(found) == [(5, "stepfast.stores.sqlite.SqliteStore"), (6, "stepfast.stores"), (7, "stepfast.server")]


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if name.startswith("stepfast/")}

    expected = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.parts)
    }
    assert expected - shipped == set()
    assert "stepfast/py.typed" in shipped


# --- the distributions ----------------------------------------------------------------------------------------------

each_distribution = pytest.mark.parametrize("name", DISTRIBUTIONS)


def built(folder: Path, hook: str, into: Path) -> Path:
    """Call a hook of the build backend in a folder, as pip does; what it made."""
    call = (
        f"import sys; sys.path.insert(0, '.'); import hatch_build as b; print(b.{hook}(sys.argv[1]), file=sys.stderr)"
    )
    into.mkdir(exist_ok=True)
    made = subprocess.run(
        [sys.executable, "-c", call, str(into)], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert made.returncode == 0, made.stderr
    return into / made.stderr.split()[-1]


def metadata_of(folder: Path, hook: str, into: Path) -> email.message.Message:
    text = (built(folder, hook, into) / "METADATA").read_text(encoding="utf-8")
    return email.parser.Parser().parsestr(text)


def requirements(metadata: email.message.Message) -> list[str]:
    return metadata.get_all("Requires-Dist", [])


def ours(metadata: email.message.Message) -> list[str]:
    """What it needs of the other distributions of Stepfast."""
    names = DISTRIBUTIONS.keys() - {metadata["Name"]}
    return [text for text in requirements(metadata) if re.split(r"[^\w.-]", text)[0] in names]


def extras_of(name: str) -> dict[str, Any]:
    table = tomllib.loads((DISTRIBUTIONS[name] / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = table["tool"]["hatch"]["metadata"]["hooks"]["custom"]["optional-dependencies"]
    return found


@each_distribution
def test_a_wheel_of_a_clone_takes_the_other_distributions_from_the_clone(name: str, tmp_path: Path) -> None:
    needed = ours(metadata_of(DISTRIBUTIONS[name], "prepare_metadata_for_build_wheel", tmp_path))

    assert len(needed) >= (len(DISTRIBUTIONS) - 1 if name == "stepfast" else 1)
    for text in needed:
        other = re.split(r"[^\w.-]", text)[0]
        assert text.partition(" @ ")[2].partition(";")[0].strip() == DISTRIBUTIONS[other].as_uri()


@each_distribution
def test_an_editable_install_names_the_other_distributions_plainly(name: str, tmp_path: Path) -> None:
    metadata = metadata_of(DISTRIBUTIONS[name], "prepare_metadata_for_build_editable", tmp_path)

    assert ours(metadata)
    assert [text for text in requirements(metadata) if "@" in text] == []


@each_distribution
def test_what_is_released_names_the_other_distributions_plainly(name: str, tmp_path: Path) -> None:
    archive = built(DISTRIBUTIONS[name], "build_sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    [source] = (tmp_path / "unpacked").iterdir()
    stated = email.parser.Parser().parsestr((source / "PKG-INFO").read_text(encoding="utf-8"))
    metadata = metadata_of(source, "prepare_metadata_for_build_wheel", tmp_path / "wheel")

    assert ours(metadata)
    assert [text for text in requirements(metadata) if "@" in text] == []
    assert sorted(requirements(stated)) == sorted(requirements(metadata))


@each_distribution
def test_the_metadata_says_who_made_it_and_where_it_lives(name: str, tmp_path: Path) -> None:
    metadata = metadata_of(DISTRIBUTIONS[name], "prepare_metadata_for_build_wheel", tmp_path)
    urls = dict(text.split(", ") for text in metadata.get_all("Project-URL", []))
    classifiers = metadata.get_all("Classifier", [])

    assert urls.keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith("https://github.com/stepfast/stepfast") for url in urls.values())
    assert (metadata["Author"], metadata["License-Expression"]) == ("Stepfast maintainers", "Apache-2.0")
    assert metadata["Keywords"]
    assert "Typing :: Typed" in classifiers
    assert [each for each in classifiers if each.startswith("License ::")] == []  # License-Expression says it


@each_distribution
def test_each_distribution_has_the_same_build_backend(name: str) -> None:
    assert (DISTRIBUTIONS[name] / "hatch_build.py").read_bytes() == (ROOT / "hatch_build.py").read_bytes()


def test_each_adapter_is_an_extra_of_the_library() -> None:
    extras = [text.partition("[")[0] for texts in extras_of("stepfast").values() for text in texts]

    assert [name for name in DISTRIBUTIONS if name != "stepfast" and name not in extras] == []


def test_every_extra_that_is_named_exists() -> None:
    pattern = re.compile(r"(?<![\w/-])(stepfast(?:-[a-z]+)*)\[([a-z][a-z, -]*)\]")
    wrong = []
    for path in hygiene.tracked_files():
        if path.suffix in {".py", ".md", ".toml"}:
            for name, extras in pattern.findall(path.read_text(encoding="utf-8")):
                missing = set(re.split(r"[, ]+", extras)) - extras_of(name).keys() if name in DISTRIBUTIONS else {name}
                wrong += [f"{path.relative_to(ROOT)}: {name}[{extra}]" for extra in missing]

    assert wrong == []
