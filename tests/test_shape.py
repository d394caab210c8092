"""Limits on the size of files, functions, folders and the library."""

from pathlib import Path

from benchmarks.census import folders, public_names, sources

TREE = Path(__file__).parents[1]
MOST_LINES = 350
MOST_PARAMETERS = {"python": 8, "numba": 12}  # Triton's kernels have no limit
MOST_MODULES = 35
MOST_PUBLIC_NAMES = 20
# Lower it whenever the library shrinks; 20,000 is the aim.
LARGEST_LIBRARY = 31_320

FOUND = sources(TREE)


def test_no_file_is_too_long():
    assert [str(each.path) for each in FOUND if each.lines > MOST_LINES] == []


def test_no_function_has_too_many_parameters():
    every = [function for source in FOUND for function in source.functions()]
    assert len(every) > 1000
    assert [
        str(each)
        for each in every
        if each.parameters > MOST_PARAMETERS.get(each.kind, each.parameters)
    ] == []


def test_no_folder_has_too_many_modules():
    assert [name for name, n in folders(FOUND).items() if n > MOST_MODULES] == []


def test_few_names_are_public():
    assert 0 < len(public_names(TREE)) <= MOST_PUBLIC_NAMES


def test_the_library_does_not_grow():
    library = sum(each.lines for each in FOUND if each.area == "library")
    assert library <= LARGEST_LIBRARY


def test_the_source_archive_has_every_folder():
    lines = (TREE / "MANIFEST.in").read_text().splitlines()
    packed = {line.split()[1] for line in lines if line.startswith("graft ")}
    assert {each.path.parts[0] for each in FOUND} - {"src"} <= packed
