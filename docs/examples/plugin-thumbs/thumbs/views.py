"""The view `answer_thumbs`, for `streamward query`."""

from streams.tools.query.sql_view import SqlView
from streams.topics.shape import OWN_TASK

SQL = """
WITH once AS (FROM thumbs QUALIFY row_number() OVER (PARTITION BY thumb_id ORDER BY _partition, _offset) = 1)
SELECT t.task_id, t.answer_id, any_value(r.policy) AS policy, any_value(r.text) AS text,
    count(*) FILTER (t.up) AS up, count(*) FILTER (NOT t.up) AS down
FROM once AS t LEFT JOIN whole.responses AS r ON r.response_id = t.answer_id GROUP BY t.task_id, t.answer_id
"""
VIEWS = (SqlView("answer_thumbs", "thumbs", "one row per rated answer: its thumbs", OWN_TASK, SQL, ("responses",)),)
