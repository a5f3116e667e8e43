"""Install Streamward's chart into a namespace of its own.

pulumi config set kafka kafka-1.example.com:9092
pulumi config set --path 'values.settings.topics.replication' 3      any value of helm/values.yaml
pulumi up
"""

from __future__ import annotations

from pathlib import Path

import pulumi
from pulumi_kubernetes.core.v1 import Namespace
from pulumi_kubernetes.helm.v3 import Release

CHART = Path(__file__).parents[2] / "helm"
INSTALL_S = 900
"""Topics and models come first."""

config = pulumi.Config()
values = config.get_object("values") or {}
values["kafka"] = {**values.get("kafka", {}), "bootstrap": config.require("kafka")}

namespace = Namespace("namespace", metadata={"name": config.get("namespace") or "streamward"})
release = Release(
    "release",
    name="streamward",
    chart=str(CHART),
    namespace=namespace.metadata["name"],
    values=values,
    atomic=True,
    timeout=INSTALL_S,
)
pulumi.export("status", release.status)
