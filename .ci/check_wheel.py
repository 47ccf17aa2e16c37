"""The wheel holds every module and data file of the tree, and nothing else of ours."""

import sys
import zipfile
from pathlib import Path

FOLDERS = {
    "core": "palestra",
    "envs": "palestra/envs",
    "certificates": "palestra/certificates",
    "controllers": "palestra/controllers",
    "agents": "palestra/agents",
    "experiments": "palestra/experiments",
}


def in_tree(root: Path) -> set[str]:
    """Paths the wheel must hold, as they stand in the wheel."""
    return {
        f"{target}/{path.relative_to(root / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for path in (root / folder).rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and (path.suffix == ".py" or path.name == "py.typed" or "data" in path.parts)
    }


def in_wheel(wheel: Path) -> set[str]:
    """Paths the wheel does hold, its own metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
    return {name for name in names if ".dist-info/" not in name}


def main() -> int:
    """Compare; print the difference or the number of modules."""
    wheel, root = Path(sys.argv[1]), Path(sys.argv[2])
    want, have = in_tree(root), in_wheel(wheel)
    for name in sorted(want - have):
        print(f"missing from the wheel: {name}", file=sys.stderr)
    for name in sorted(have - want):
        print(f"in the wheel, not in the tree: {name}", file=sys.stderr)
    if want != have:
        return 1
    modules = sum(name.endswith(".py") for name in have)
    print(f"{modules} modules and {len(have) - modules} other files, in the wheel as in the tree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
