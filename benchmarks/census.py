"""How large a checkout of thinwire is: lines, functions, parameters and contracts.

    python benchmarks/census.py [TREE ...]

Reads source files and imports none. Lines are all lines of Python files. `self` and
`cls` are not counted as parameters. A contract's members are the public names in its
class body, and in brackets those that have no default.
"""

import argparse
import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

AREAS = ("library", "tools", "experiments", "tests", "benchmarks", "fuzz", "chaos")
AREAS += ("examples",)
# Packages that were part of the library's folder before they moved.
OLD_TOOLS = ("bench", "cli", "lab", "plan", "tools")
OLD_EXPERIMENTS = ("train",)
CONTRACTS = (
    "Collective",
    "RowCollective",
    "Codec",
    "IndexCodec",
    "ValueCodec",
    "Group",
    "Channel",
    "Feedback",
    "Accumulator",
)
# Decorators under which numba or Triton compiles a function.
COMPILED = ("kernel", "part", "counting", "triton.jit")


@dataclass(frozen=True)
class Function:
    """A function or method, and whether numba or Triton compiles it."""

    place: str
    lines: int
    parameters: int
    kind: str

    def __str__(self) -> str:
        return f"{self.place}: {self.lines} lines, {self.parameters} parameters"


@dataclass(frozen=True)
class Source:
    """One Python file of a checkout."""

    area: str
    path: Path
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    def functions(self) -> Iterator[Function]:
        """All functions, methods with the name of their class in front."""
        compiler = "triton" if "import triton" in self.text else "numba"
        yield from _functions(ast.parse(self.text), str(self.path), compiler)

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes, nested ones too."""
        for node in ast.walk(ast.parse(self.text)):
            if isinstance(node, ast.ClassDef):
                yield node


def sources(tree: Path) -> list[Source]:
    """The Python files of a checkout, sorted."""
    found = []
    for top in ("src", *AREAS[2:]):
        for path in sorted((tree / top).rglob("*.py")):
            relative = path.relative_to(tree)
            found.append(Source(area_of(relative), relative, path.read_text()))
    return found


def area_of(path: Path) -> str:
    """Where a file belongs.

    >>> area_of(Path("src/thinwire/tools/cli/app.py"))
    'tools'
    """
    if path.parts[0] != "src":
        return path.parts[0]
    package = path.parts[2]
    if package in OLD_TOOLS:
        return "tools"
    return "experiments" if package in OLD_EXPERIMENTS else "library"


def package_of(source: Source) -> str:
    """The folder below the area that a file is counted in."""
    start = 2 if source.path.parts[0] == "src" else 1
    folders = source.path.parts[start:-1]
    depth = 2 if folders[:1] in (("tools",), ("kernels",)) else 1
    return "/".join(folders[:depth]) or "."


def folders(found: Sequence[Source]) -> Counter[str]:
    """How many modules each folder has."""
    return Counter(str(source.path.parent) for source in found)


def public_names(tree: Path) -> list[str]:
    """What `thinwire.__all__` lists."""
    text = (tree / "src" / "thinwire" / "__init__.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def members(contract: ast.ClassDef) -> tuple[list[str], list[str]]:
    """The public names of a class body, and those of them that have no default."""
    names, required = [], []
    for node in contract.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, empty = node.name, _is_empty(node)
        elif isinstance(node, ast.AnnAssign):
            name, empty = ast.unparse(node.target), node.value is None
        elif isinstance(node, ast.Assign):
            name, empty = ast.unparse(node.targets[0]), False
        else:
            continue
        if not name.startswith("_"):
            names.append(name)
            required += [name] * empty
    return names, required


def _is_empty(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a body has only a docstring, `...`, `pass` or `raise`."""
    return all(
        isinstance(node, ast.Pass | ast.Raise)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in function.body
    )


def _functions(node: ast.AST, place: str, compiler: str) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.ClassDef):
            inner = f"{place}:{child.name}" if ":" not in place else place
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            separator = "." if ":" in place else ":"
            inner = f"{place}{separator}{child.name}"
            decorators = {ast.unparse(each) for each in child.decorator_list}
            kind = compiler if decorators & set(COMPILED) else "python"
            last = child.end_lineno or child.lineno
            lines = last - child.lineno + 1
            yield Function(inner, lines, _count_parameters(child), kind)
        yield from _functions(child, inner, compiler)


def _count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    variadic = [each for each in (given.vararg, given.kwarg) if each is not None]
    return len([name for name in names if name not in ("self", "cls")]) + len(variadic)


def report(tree: Path) -> None:
    """Print the census of one checkout."""
    found = sources(tree)
    print(f"{tree}\n\nLines by package")
    for area in AREAS:
        _report_area(area, [source for source in found if source.area == area])
    largest = max(found, key=lambda source: source.lines)
    print(f"\nLargest file: {largest.path}, {largest.lines} lines")
    print(f"Files over 350 lines: {sum(source.lines > 350 for source in found)}")
    folder, count = folders(found).most_common(1)[0]
    print(f"Fullest folder: {folder}, {count} modules")
    every = [function for source in found for function in source.functions()]
    for kind in ("python", "numba", "triton"):
        _report_functions(kind, [each for each in every if each.kind == kind])
    print(f"\nPublic names in thinwire: {len(public_names(tree))}")
    print("Members of contracts (without a default)")
    library = [source for source in found if source.area == "library"]
    for node in (node for source in library for node in source.classes()):
        if node.name in CONTRACTS:
            names, required = members(node)
            listed = ", ".join(names)
            print(f"  {node.name:14} {len(names):2} ({len(required)}): {listed}")


def _report_area(area: str, chosen: Sequence[Source]) -> None:
    total = sum(source.lines for source in chosen)
    print(f"  {area:30} {total:7,} lines in {len(chosen)} files")
    lines = Counter[str]()
    for source in chosen if area in AREAS[:3] else ():
        lines[package_of(source)] += source.lines
    for package, count in lines.most_common():
        print(f"    {package:28} {count:7,}")


def _report_functions(kind: str, chosen: Sequence[Function]) -> None:
    print(f"\nFunctions ({kind}): {len(chosen)}")
    print(f"  longest: {max(chosen, key=lambda each: each.lines)}")
    print(f"  most parameters: {max(chosen, key=lambda each: each.parameters)}")
    counts = Counter(each.parameters for each in chosen)
    listed = ", ".join(f"{n}: {counts[n]}" for n in sorted(counts))
    print(f"  functions by number of parameters: {listed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="*", default=[Path()])
    for tree in parser.parse_args().trees:
        report(tree)


if __name__ == "__main__":
    main()
