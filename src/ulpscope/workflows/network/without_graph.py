"""Two dumps of a device without a graph: operators of equal names, with msaccucmp's tables beside our own verdict."""

from pathlib import Path
from typing import TYPE_CHECKING

from ulpscope.align.network_names import names_in_both
from ulpscope.align.network_pairs import pair_dumps
from ulpscope.align.network_references import DumpReferences
from ulpscope.dialects import npy_folder
from ulpscope.dialects.ascend.tree import has_dumps
from ulpscope.records.network import NetworkPlan
from ulpscope.records.pairs import Pair
from ulpscope.workflows.compare.command import CompareOptions, compare
from ulpscope.workflows.network.command import NetworkOptions, NetworkResult, tensor_orders
from ulpscope.workflows.network.measuring import Wanted
from ulpscope.workflows.network.pairing import PairedNetwork
from ulpscope.workflows.network.pool import measure_all
from ulpscope.workflows.network.sides import Reference, find_dumps

if TYPE_CHECKING:
    from ulpscope.report.progress import Advance


def are_dumps(reference: Path, target: Path) -> bool:
    """Whether a device dumped both sides."""
    return all(path.is_dir() and not npy_folder.looks_like(path) and has_dumps(path) for path in (reference, target))


def pair_without_graph(reference: Path, target: Path, options: NetworkOptions) -> PairedNetwork:
    """Which tensor is compared with which, by names alone."""
    theirs = find_dumps(reference, graph=None, chosen=options.chosen)
    mine = find_dumps(target, graph=None, chosen=options.chosen)
    named, nothing = names_in_both(Pair(theirs.operations, mine.operations)), NetworkPlan("", ())
    return PairedNetwork(
        names=Pair(str(reference), str(target)),
        graph=None,
        plan=nothing,
        whole=nothing,
        dumps=mine,
        rows=tuple(pair_dumps(named.target, named.reference, DumpReferences(named.reference))),
        reference=Reference(operations=theirs.operations, missing=theirs.missing),
        choice=options.operators,
    )


def compare_dumps(
    reference: Path, target: Path, options: NetworkOptions, ordinary: CompareOptions, *, advance: "Advance"
) -> NetworkResult:
    """Compare two dumps: judged as any two runs are, with a row a tensor for msaccucmp's table."""
    paired = pair_without_graph(reference, target, options)
    orders = [] if options.csv is None else tensor_orders(paired.rows, overflow=options.overflow)
    wanted = Wanted(options.csv, options.overflow, options.details)
    outcomes = measure_all(orders, wanted, jobs=options.jobs, advance=lambda number: advance(number))
    return NetworkResult(compare(reference, target, ordinary), paired, outcomes, options)
