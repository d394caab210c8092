"""`thinwire bench codecs`: bits, time and error of codecs on a user's tensor."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from thinwire import catalog, kernels
from thinwire.collectives.collective import check_density
from thinwire.sparse import SparseVector
from thinwire.tools.bench import tensors
from thinwire.tools.bench.codecs import Measured, bound, largest, measure, one_thread
from thinwire.tools.cli.formatting import share
from thinwire.tools.cli.outputs import Outputs
from thinwire.tools.cli.progress import telling

DEFAULT_CODECS = (
    "raw,elias-fano+bfloat16,rice+bfloat16,rice+int8,rice+log6,rice+log5,rice+log4,"
    "varint+bfloat16,huffman+deflate,rice+fit-poly,bloom-p2+qsgd"
)

_HEADINGS = (
    "index",
    "value",
    "packet",
    "encode",
    "decode",
    "error",
    "recall",
)

_NOTES = """\
index, value, packet: bits per entry, the packet with its header. bound: the fewest \
bits per index if all lists were equally likely; a codec that takes less has found \
entries that cluster.
encode, decode: nanoseconds per entry that one thread takes, the median of several \
runs. On a busy machine they are upper bounds.
error: of the values that arrive, relative to their L2 norm; what is not delivered \
stays with the sender. recall: the share of the largest that arrives."""


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of some codecs for the largest elements of a tensor."""

    tensor: Path
    density: float
    vector: SparseVector
    rows: dict[str, Measured]

    @property
    def bound(self) -> float:
        """The least mean number of bits per index."""
        return bound(self.vector.size, self.vector.nnz)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return {
            "tensor": str(self.tensor),
            "size": self.vector.size,
            "density": self.density,
            "kept": self.vector.nnz,
            "bound_bits": self.bound,
            "codecs": [_row_as_dict(name, row) for name, row in self.rows.items()],
        }


def run(tensor: Path, density: float, codecs: str, outputs: Outputs) -> None:
    """Measure, show a table that fits 80 columns, write the file if one is wanted."""
    check_density(density)
    names = list(dict.fromkeys(name.strip() for name in codecs.split(",")))
    chosen = {name: catalog.codec(name) for name in names}
    outputs.check()
    dense = tensors.load(tensor)
    rows = {}
    with one_thread(), telling("measuring") as tell:
        vector = largest(dense, density)
        for name, codec in chosen.items():
            tell(name)
            rows[name] = measure(
                codec, vector, lambda indices: kernels.gather(dense, indices)
            )
    report = Report(tensor, density, vector, rows)
    outputs.console.print(_table(report))
    outputs.console.print(_NOTES, style="dim", highlight=False)
    outputs.write(report.as_dict())


def _row_as_dict(name: str, row: Measured) -> dict[str, Any]:
    return {
        "codec": name,
        "index_bits": row.index_bits,
        "value_bits": row.value_bits,
        "packet_bits": row.packet_bits,
        "encode_ns": asdict(row.encode),
        "decode_ns": asdict(row.decode),
        "error": row.error,
        "recall": row.recall,
    }


def _table(report: Report) -> Table:
    kept, size = report.vector.nnz, report.vector.size
    table = Table(
        title=f"{report.tensor.name}: the largest {kept:,} of {size:,} elements "
        f"({share(kept, size)})",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("codec", style="bold", no_wrap=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_row("(bound)", f"{report.bound:.2f}")
    for name, row in report.rows.items():
        table.add_row(name, *_cells(row))
    return table


def _cells(row: Measured) -> list[str]:
    return [
        f"{row.index_bits:.2f}",
        f"{row.value_bits:.2f}",
        f"{row.packet_bits:.2f}",
        f"{row.encode.median:.1f}",
        f"{row.decode.median:.1f}",
        share(row.error, 1.0),
        share(row.recall, 1.0),
    ]
