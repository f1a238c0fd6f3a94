"""The command ``adjoint``: a first look, the demo, the op table, programs on several ranks, benchmarks."""

from __future__ import annotations

import argparse
import difflib
import os
import runpy
import sys
from collections.abc import Sequence

import adjoint
from adjoint.cli.demo import EPOCHS, demo
from adjoint.cli.first_look import first_look
from adjoint.cli.launch import launch
from adjoint.cli.op_table import op_table
from adjoint.core.op import OPS
from adjoint.errors import AdjointError, InputError

__all__ = ["main"]

VERSION = adjoint.__version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        The exit status.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given[:1] if given[:1] == ["bench"] else given)
    try:
        if options.command == "ops":
            if unknown := [n for n in options.names if not any(n in op for op in OPS)]:
                near = difflib.get_close_matches(unknown[0], OPS, 3)
                print(
                    f"adjoint ops: no op has {unknown[0]!r} in its name."
                    + (f"  Similar names are {', '.join(near)}." if near else "  adjoint ops lists all."),
                    file=sys.stderr,
                )
                return 2
            print(op_table(options.names, markdown=options.markdown))
        elif options.command == "demo":
            print(demo(path=options.picture, as_json=options.json, epochs=options.epochs))
        elif options.command == "launch":
            return launch(options.n, options.program, options.arguments)
        elif options.command == "bench":
            _bench(given[1:])  # the benchmarks parse their own options
        else:
            print(first_look())
    except AdjointError as error:
        print(f"adjoint: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adjoint", description="Automatic differentiation for NumPy programs."
    )
    parser.add_argument("--version", action="version", version=f"adjoint {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("look", help="a small program, its gradient and the check (the default)")
    shown = commands.add_parser("demo", help="train a classifier of handwritten digits")
    shown.add_argument("--json", action="store_true", help="print one JSON object and no progress")
    shown.add_argument("--picture", default="curve.png", help="where the curve goes (curve.png)")
    shown.add_argument("--epochs", type=_from_one, default=EPOCHS, help=f"how long to train ({EPOCHS})")
    ops = commands.add_parser("ops", help="print the table of ops")
    ops.add_argument("--markdown", action="store_true", help="as docs/ops.md")
    ops.add_argument("names", nargs="*", help="only ops whose names contain one of these")
    launched = commands.add_parser("launch", help="run a program on several ranks, with mpiexec")
    launched.add_argument("-n", type=_from_one, required=True, metavar="RANKS", help="the number of ranks")
    launched.add_argument("program", help="a Python program that uses adjoint.distributed")
    launched.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    commands.add_parser("bench", help="run the benchmarks, with the options of python -m benchmarks")
    return parser


def _from_one(text: str) -> int:
    """Read an integer from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer from 1, not {text!r}.")
    return int(text)


def _bench(arguments: list[str]) -> None:
    """Run the benchmarks of the clone in the current directory, or of the clone that contains the package."""
    for clone in (os.getcwd(), os.path.dirname(os.path.dirname(adjoint.__file__))):
        if os.path.isfile(os.path.join(clone, "benchmarks", "harness.py")):
            break
    else:
        raise InputError(
            "bench: the benchmarks are not part of the installed package.\n"
            "  Clone the repository, pip install -e '.[bench,oracle]', and run this there."
        )
    sys.path.insert(0, clone)
    sys.argv = ["benchmarks", *arguments]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
