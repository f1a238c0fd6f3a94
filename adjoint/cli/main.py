"""``adjoint``: a first look, and the op table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from adjoint.cli.first_look import first_look
from adjoint.cli.op_table import op_table
from adjoint.errors import AdjointError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="adjoint", description="Automatic differentiation for NumPy programs."
    )
    commands = parser.add_subparsers(dest="command", metavar="command")
    commands.add_parser("look", help="a small program, its gradient and the check (the default)")
    ops = commands.add_parser("ops", help="print the table of ops")
    ops.add_argument("--markdown", action="store_true", help="as docs/ops.md")
    ops.add_argument("names", nargs="*", help="only ops whose names contain one of these")
    options = parser.parse_args(arguments)
    try:
        if options.command == "ops":
            print(op_table(options.names, markdown=options.markdown))
        else:
            print(first_look())
    except AdjointError as error:
        print(f"adjoint: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as head, has enough
        sys.stderr.close()
    return 0
