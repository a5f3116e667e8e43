"""Run the program of deploy/pulumi with Pulumi's own mocks: neither its engine nor a cluster is asked.

    CONFIG, JSON ──► deploy/pulumi/__main__.py ──► the resources that it asks for, a line of JSON each

Runs in the environment of Pulumi (`make setup-deploy`).
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pulumi

PROGRAM = Path(__file__).parents[3] / "deploy" / "pulumi" / "__main__.py"


class Printed(pulumi.runtime.Mocks):
    """Prints each resource."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        """Return a resource as it was asked for."""
        print(json.dumps({"type": args.typ, "inputs": args.inputs}), flush=True)
        return f"{args.name}-id", args.inputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[Any, Any]:
        """Return nothing: the program calls no function of a provider."""
        return {}


pulumi.runtime.set_mocks(Printed(), project="streamward")
pulumi.runtime.set_all_config({f"streamward:{key}": value for key, value in json.loads(sys.argv[1]).items()})
program = pulumi.runtime.test(lambda: runpy.run_path(str(PROGRAM), run_name="__main__") and None)
program()
