"""A dashboard as the JSON that Grafana reads.

    Dashboard ── rows of panels ── queries ──► model ──► helm/dashboards/*.json, Grafana's API

Panels are laid out from left to right, three in a row, or six single numbers. Their ids count from 1, so that the same
dashboard has the same bytes. At the top of each, the user chooses a data source, a namespace and a policy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from streams.observability import catalog
from streams.observability.grafana.promql import restrict

SCHEMA_VERSION = 39
"""Version of Grafana's dashboard model: that of Grafana 11, which later ones read."""
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TAG = "streamward"
WIDTH = 24
"""Columns of a dashboard."""


class Query(NamedTuple):
    """One line, or one for each series. `legend` names it by its labels."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One graph. `unit` is Grafana's word for it."""

    title: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["lines", "areas", "number"] = "lines"
    about: str = ""


class PanelRow(NamedTuple):
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


class Dashboard(NamedTuple):
    """One page. `name` is that of its file; its uid is `streamward-` and that name."""

    name: str
    title: str
    about: str
    rows: tuple[PanelRow, ...]

    @property
    def uid(self) -> str:
        """Its id in every Grafana."""
        return f"{TAG}-{self.name}"

    @property
    def panels(self) -> Iterator[Panel]:
        """All its panels."""
        return (panel for row in self.rows for panel in row.panels)


def model(dashboard: Dashboard) -> dict[str, Any]:
    """Return Grafana's form of a dashboard, without the id and version that Grafana adds."""
    return {
        "uid": dashboard.uid,
        "title": f"Streamward: {dashboard.title}",
        "description": dashboard.about,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "links": [
            {
                "type": "dashboards", "title": "Streamward", "tags": [TAG], "asDropdown": True, "includeVars": True,
                "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": "",
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": list(_variables())},
        "panels": list(_layout(dashboard.rows)),
    }  # fmt: skip


def text(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    return json.dumps(model(dashboard), indent=1, ensure_ascii=False) + "\n"


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1,
        "hide": 0, "includeAll": False, "multi": False, "options": [], "current": {},
    }  # fmt: skip
    labels = {"namespace": catalog.PROCESS.name, "policy": catalog.PRIMARY.name}
    for label, metric in labels.items():
        yield {
            "name": label, "label": label.capitalize(), "type": "query", "datasource": SOURCE,
            "query": {"query": f"label_values({metric}, {label})", "refId": label},
            "definition": f"label_values({metric}, {label})",
            "refresh": 2, "sort": 1, "hide": 0, "multi": True, "options": [],
            # all series, also those without the label
            "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]},
        }  # fmt: skip


def _layout(rows: Sequence[PanelRow]) -> Iterator[dict[str, Any]]:
    number = y = 0
    for row in rows:
        number += 1
        yield {
            "id": number, "type": "row", "title": row.title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
        }  # fmt: skip
        y, x, deep = y + 1, 0, 0
        for panel in row.panels:
            number += 1
            w, h = (4, 4) if panel.kind == "number" else (8, 8)
            if x + w > WIDTH:
                x, y, deep = 0, y + deep, 0
            yield _panel(panel, number, {"x": x, "y": y, "w": w, "h": h})
            x, deep = x + w, max(deep, h)
        y += deep


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    numbers = panel.kind == "number"
    targets = [
        {
            "refId": chr(ord("A") + index), "datasource": SOURCE, "expr": restrict(query.expression),
            "legendFormat": query.legend, "editorMode": "code", "instant": numbers, "range": not numbers,
        }
        for index, query in enumerate(panel.queries)
    ]  # fmt: skip
    defaults: dict[str, Any] = {"unit": panel.unit, "mappings": [], "color": {"mode": "palette-classic"}}
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    if numbers:
        options = {
            "colorMode": "value", "graphMode": "none", "justifyMode": "auto", "orientation": "auto",
            "textMode": "auto", "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        }  # fmt: skip
    else:
        areas = panel.kind == "areas"
        defaults["custom"] = {
            "drawStyle": "line", "lineWidth": 1, "fillOpacity": 30 if areas else 0, "showPoints": "never",
            "spanNulls": False, "stacking": {"group": "A", "mode": "normal" if areas else "none"},
        }  # fmt: skip
    return {
        "id": number, "type": "stat" if numbers else "timeseries", "title": panel.title, "description": panel.about,
        "datasource": SOURCE, "gridPos": place, "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options, "targets": targets,
    }  # fmt: skip
