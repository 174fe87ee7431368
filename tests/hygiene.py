"""What no tracked file may hold: names of package registries, paths of somebody's machine, untidy text.

And what an adapter may not import: anything of Stepfast but its public names.

Needs nothing but Python, so that it can run before anything is installed: `python tests/hygiene.py`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Only for trees that are not a git checkout; inside one, git knows what counts.
NOT_OURS = re.compile(r"(^|/)(\.git|\.venv[^/]*|\.[a-z_]+_cache|\.hypothesis|__pycache__|build|dist)(/|$)")

# In pieces, so that this file passes its own check.
REGISTRY_HOSTS = re.compile("|".join(["pypi" + r"\.(org|python|io)", "python" + r"hosted\.org"]))
MACHINE_PATHS = re.compile(r"(?<![\w.~$}/-])/(?:root|work|farm|home|Users)/[\w.-]")

ADAPTER_CODE = re.compile(r"^adapters/[^/]+/(src|examples|bench)/.*\.py$")
# The modules of Stepfast whose own names are public, beside those of the package itself.
PUBLIC_MODULES = frozenset(
    {
        "stepfast.adapters",
        "stepfast.cli.plugin",
        "stepfast.codec",
        "stepfast.faces",
        "stepfast.flow",
        "stepfast.inputs",
        "stepfast.steps",
        "stepfast.stored_names",
        "stepfast.threads",
    }
)


def tracked_files() -> list[Path]:
    """Every file of the project: tracked ones and those about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [name for name in listing.stdout.split("\0") if name]
    else:
        names = [path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*")]
        names = [name for name in names if not NOT_OURS.search(name)]
    return sorted(path for path in (ROOT / name for name in names) if path.is_file())


def complaints(path: Path) -> Iterator[str]:
    """What is wrong with one file, each with its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return  # a picture or other binary
    name = path.relative_to(ROOT).as_posix()
    if text and not text.endswith("\n"):
        yield f"{name}: no newline at the end"
    for number, line in enumerate(text.split("\n"), start=1):
        where = f"{name}:{number}"
        if REGISTRY_HOSTS.search(line):
            yield f"{where}: names a package registry; leave the choice to the user's own configuration"
        if MACHINE_PATHS.search(line):
            yield f"{where}: holds a path of one machine"
        if line != line.rstrip():
            yield f"{where}: ends in white space"
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            yield f"{where}: an unresolved merge"
    if ADAPTER_CODE.match(name):
        for number, what in private_imports(text):
            yield f"{name}:{number}: imports {what}, which is not public; an adapter uses Stepfast's public names"


def public_names() -> set[str]:
    """What ``from stepfast import …`` may name, read without importing anything."""
    tree = ast.parse((ROOT / "src" / "stepfast" / "__init__.py").read_text(encoding="utf-8"))
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return {*names, *(module.removeprefix("stepfast.") for module in PUBLIC_MODULES)}


def private_imports(code: str) -> Iterator[tuple[int, str]]:
    """Each import of something of Stepfast's that is not public, with its line."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            for each in node.names:
                if each.name.startswith("stepfast.") and each.name not in PUBLIC_MODULES:
                    yield node.lineno, each.name
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module is not None:
            names = [each.name for each in node.names]
            if node.module == "stepfast":
                hidden = [name for name in names if name not in public_names()]
            elif node.module in PUBLIC_MODULES or node.module.startswith("stepfast.adapters."):
                hidden = [name for name in names if name.startswith("_")]
            elif node.module.startswith("stepfast."):
                hidden = [name for name in names if f"{node.module}.{name}" not in PUBLIC_MODULES]
            else:
                continue
            yield from ((node.lineno, f"{node.module}.{name}") for name in hidden)


def main() -> int:
    found = [complaint for path in tracked_files() for complaint in complaints(path)]
    for complaint in found:
        print(complaint, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
