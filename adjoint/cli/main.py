"""The command-line program ``adjoint``: its commands, their options and exit statuses."""

from __future__ import annotations

import argparse
import difflib
import io
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

import adjoint
from adjoint.cli.check import check
from adjoint.cli.demo import EPOCHS, demo
from adjoint.cli.doctor import doctor
from adjoint.cli.export import export_function
from adjoint.cli.first_look import first_look
from adjoint.cli.launch import launch
from adjoint.cli.op_table import op_table
from adjoint.cli.views import graph_text, profile_text, report_text
from adjoint.core.op import OPS
from adjoint.errors import AdjointError, ArgumentError, InputError

__all__ = ["main"]

VERSION = adjoint.__version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of the process, and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:  # a pipe on Windows may have an encoding without ≤ or →
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    options = _parser().parse_args(given[:1] if given[:1] == ["bench"] else given)
    try:
        if options.command == "bench":
            _bench(given[1:])  # the benchmarks parse their own options
            return 0
        found: str | int = options.run(options)
        if isinstance(found, int):
            return found
        print(found)
    except (InputError, ArgumentError) as error:
        text = str(error).removeprefix(f"{options.command}: ")
        print(f"adjoint {options.command}: {text}", file=sys.stderr)
        return 2
    except AdjointError as error:
        print(f"adjoint: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        sys.stderr.close()
    return 0


def _ops(options: argparse.Namespace) -> str | int:
    if unknown := [n for n in options.names if not any(n in op for op in OPS)]:
        near = difflib.get_close_matches(unknown[0], OPS, 3)
        print(
            f"adjoint ops: no op has {unknown[0]!r} in its name."
            + (f"  Similar names are {', '.join(near)}." if near else "  adjoint ops lists all."),
            file=sys.stderr,
        )
        return 2
    return op_table(options.names, markdown=options.markdown)


def _check(options: argparse.Namespace) -> int:
    text, agree = check(
        options.function, options.arguments, order=options.order, seed=options.seed, as_json=options.json
    )
    print(text)
    return 0 if agree else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="adjoint", description="Automatic differentiation for NumPy programs."
    )
    parser.add_argument("--version", action="version", version=f"adjoint {VERSION}")
    parser.set_defaults(run=lambda o: first_look(), command="look")
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("look", help="run a small program and check its gradient (the default)")
    shown = commands.add_parser("demo", help="train a classifier of handwritten digits")
    shown.set_defaults(
        run=lambda o: demo(path=o.picture, page=o.report, as_json=o.json, epochs=o.epochs, compile=o.compile)
    )
    shown.add_argument("--json", action="store_true", help="print one JSON object and no progress")
    shown.add_argument("--picture", default="curve.png", help="the file of the plot (curve.png)")
    shown.add_argument("--report", default="report.html", help="the file of the report (report.html)")
    shown.add_argument("--epochs", type=_from_one, default=EPOCHS, help=f"the number of epochs ({EPOCHS})")
    shown.add_argument("--compile", action="store_true", help="compile the loss and its backward")
    checked = commands.add_parser(
        "check", help="compare the derivatives of a function with finite differences"
    )
    checked.set_defaults(run=_check)
    _add_function(checked)
    checked.add_argument(
        "--order", type=_from_one, default=2, help="the highest order of derivatives to check (2)"
    )
    checked.add_argument("--seed", type=int, default=0, help="seed of random arguments (0)")
    checked.add_argument("--json", action="store_true", help="print one JSON object")
    drawn = commands.add_parser("graph", help="draw the graph of a call of a function")
    drawn.set_defaults(run=lambda o: graph_text(o.function, o.arguments, o.output))
    _add_function(drawn)
    drawn.add_argument(
        "-o", "--output", help="a file to write: .txt, .dot, .svg or .html; by default text is printed"
    )
    measured = commands.add_parser("profile", help="measure the ops of a function and of its backward")
    measured.set_defaults(
        run=lambda o: profile_text(o.function, o.arguments, repeat=o.repeat, trace=o.trace, as_json=o.json)
    )
    _add_function(measured)
    measured.add_argument("--repeat", type=_from_one, default=10, help="the number of measured calls (10)")
    measured.add_argument("--trace", help="a file for a trace that Perfetto shows")
    measured.add_argument("--json", action="store_true", help="print a JSON list of ops")
    reported = commands.add_parser("report", help="run a function that trains, and write the report")
    reported.set_defaults(run=lambda o: report_text(o.function, o.output))
    reported.add_argument("function", help="file.py:function, which returns its Trainer or Recorder")
    reported.add_argument("-o", "--output", default="report.html", help="the page (report.html)")
    _add_export(commands)
    ops = commands.add_parser("ops", help="print the table of ops")
    ops.set_defaults(run=_ops)
    ops.add_argument("--markdown", action="store_true", help="print Markdown, as in docs/ops.md")
    ops.add_argument("names", nargs="*", help="only ops whose names contain one of these")
    launched = commands.add_parser("launch", help="run a program on several ranks, with mpiexec")
    launched.set_defaults(run=lambda o: launch(o.n, o.program, o.arguments))
    launched.add_argument("-n", type=_from_one, required=True, metavar="RANKS", help="the number of ranks")
    launched.add_argument("program", help="a Python program that uses adjoint.distributed")
    launched.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    described = commands.add_parser("doctor", help="describe this installation")
    described.set_defaults(run=lambda o: doctor(as_json=o.json))
    described.add_argument("--json", action="store_true", help="print one JSON object")
    commands.add_parser("bench", help="run the benchmarks, with the options of python -m benchmarks")
    return parser


def _add_export(commands: Any) -> None:
    """Add the command ``export``."""
    exported = commands.add_parser("export", help="write a function as a library without Python")
    exported.set_defaults(
        run=lambda o: export_function(
            o.function, o.arguments, o.output, o.dtype,
            target=o.target, name=o.name, level=o.level, triple=o.triple,
        )
    )  # fmt: skip
    _add_function(exported)
    exported.add_argument("-o", "--output", default="exported", help="the folder to write into (exported)")
    exported.add_argument("--target", default="c", help="c, python or wasm (c)")
    exported.add_argument("--name", help="the name of the library; by default that of the function")
    exported.add_argument("--level", default="portable", help="vector instructions, such as avx2 (portable)")
    exported.add_argument("--triple", help="processor and system, such as aarch64-linux; by default this one")
    exported.add_argument("--dtype", help="the dtype of example arrays of floats, such as float32")


def _add_function(parser: argparse.ArgumentParser) -> None:
    """Add the command-line arguments that name a function of the user and the values to call it with."""
    parser.add_argument("function", help="file.py:function or module:function")
    parser.add_argument(
        "arguments", nargs="*", help="shapes (3x4; 5x is a vector), numbers (2 is an int), or arrays in JSON"
    )


def _from_one(text: str) -> int:
    """Convert the text of an option to an integer; raise if it is less than 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}.")
    return int(text)


def _bench(arguments: list[str]) -> None:
    """Run the benchmarks, which are in a clone of the repository, with command-line ``arguments``.

    The clone is the current directory, or the directory that contains the package.
    """
    for clone in (os.getcwd(), os.path.dirname(os.path.dirname(adjoint.__file__))):
        if os.path.isfile(os.path.join(clone, "benchmarks", "harness.py")):
            break
    else:
        raise InputError(
            "bench: the benchmarks are not part of the installed package.\n"
            "  Clone the repository.  In the clone, run pip install -e . --group bench --group oracle, "
            "then adjoint bench."
        )
    sys.path.insert(0, clone)
    sys.argv = ["benchmarks", *arguments]
    runpy.run_module("benchmarks", run_name="__main__", alter_sys=True)
