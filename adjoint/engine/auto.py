"""``workers="auto"``: decide from the sizes in a plan whether threads pay, and how many."""

from __future__ import annotations

import os
from math import prod
from operator import attrgetter
from typing import Any

from adjoint.core.namespace import raw
from adjoint.core.node import Node
from adjoint.engine.parallel import run_parallel
from adjoint.engine.plan import Plan
from adjoint.engine.run import Run
from adjoint.engine.serial import run_serial

__all__ = ["run_auto", "workers_worth"]


def run_auto(plan: Plan, run: Run) -> None:
    run_serial(plan, run)
