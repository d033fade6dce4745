"""Turns a dashboard into JSON for Grafana's import."""

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import VariableRefresh

from .boards import Board
from .panel import DATASOURCE, built


def render(board: Board) -> str:
    """Return the dashboard as JSON. Data source and nodes are variables of the dashboard, so it
    fits any Grafana."""
    drawn = (
        dashboard.Dashboard(f"tasuki: {board.name}")
        .uid(f"tasuki-{board.name}")
        .tags(["tasuki"])
        .refresh("10s")
        .time("now-30m", "now")
        .with_variable(dashboard.DatasourceVariable("datasource").type("prometheus"))
        .with_variable(
            dashboard.QueryVariable("node")
            .datasource(DATASOURCE)
            .query("label_values(tasuki_node_state, instance)")
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
            .multi(True)
            .include_all(True)
            .all_value(".+")
        )
    )
    for panel in board.panels:
        drawn = drawn.with_panel(built(panel))
    return JSONEncoder(sort_keys=True, indent=1).encode(drawn.build()) + "\n"
