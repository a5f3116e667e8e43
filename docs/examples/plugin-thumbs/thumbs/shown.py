"""What people are shown: the view `answer_thumbs`, a list of bad answers on the page, a metric and its alert."""

from streams.observability.catalog import Metric
from streams.observability.grafana.alerts import Alert, Limit
from streams.tools.query.sql_view import SqlView
from streams.tools.query.view_list import ViewList
from streams.topics.shape import OWN_TASK

SQL = """
WITH once AS (FROM thumbs QUALIFY row_number() OVER (PARTITION BY thumb_id ORDER BY _partition, _offset) = 1)
SELECT t.task_id, t.answer_id, any_value(r.policy) AS policy, any_value(r.text) AS text,
    count(*) FILTER (t.up) AS up, count(*) FILTER (NOT t.up) AS down
FROM once AS t LEFT JOIN whole.responses AS r ON r.response_id = t.answer_id GROUP BY t.task_id, t.answer_id
"""
VIEWS = (SqlView("answer_thumbs", "thumbs", "one row per rated answer: its thumbs", OWN_TASK, SQL, ("responses",)),)
LISTS = (ViewList(
    "bad-answers", "Bad answers", "answer_thumbs", ("task_id", "policy", "text", "up", "down"), where="down > up",
    order="up - down", filters=("policy",), links={"task_id": "tasks/{task_id}"},
),)  # fmt: skip
METRICS = (THUMBS := Metric("streamward_thumbs_total", "counter", ("thumb",), "Thumbs.", ("serve",), "a thumb"),)
ALERTS = (Alert(
    "ThumbsDown", "warning", "0m", Limit('sum(increase(streamward_thumbs_total{thumb="down"}[1h]))', ">", 20),
    "{{ $value | humanize }} thumbs down in an hour.", do="read the list Bad answers; roll back, if a version is worse",
),)  # fmt: skip
