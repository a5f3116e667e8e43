"""The store of the Agent Protocol: what agents remember across threads.

PUT, GET, DELETE /acp/store/items · POST /acp/store/items/search, /acp/store/namespaces, /acp/store
    ──► MemoryEvent ──► memory ──► own fold has passed it ──► answer
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.agents.caller import subject_of
from gateway.http.principal import actor_of
from gateway.log.open_log import AT_ONCE
from plugins.threads.acp.thread_access import logged_namespace, own_labels
from plugins.threads.acp.thread_answers import ItemAnswer, ItemList, item_answer
from plugins.threads.acp.thread_bodies import ItemDelete, ItemPut, ItemSearch, NamespaceSearch
from plugins.threads.acp.thread_interfaces import ACP
from plugins.threads.log.memory_log import MemoryLog
from plugins.threads.log.memory_state import MemoryItem
from schemas import json_text
from streams.access.tenants.tenant_names import SEPARATOR
from streams.errors import CallError, EventError

LISTED = "POST /acp/store/items/search lists items"
"""Where keys are found."""


class AcpStore:
    """The store of a server. Methods wait for the broker."""

    def __init__(self, memory: Callable[[], MemoryLog]) -> None:
        """`memory` opens the store."""
        self._memory = memory

    @ACP.put("/store/items", may="chat.call", refuses=(), status=204, at_once=AT_ONCE)
    def acp_put_item(self, request: Request, body: ItemPut) -> None:
        """Put an item."""
        self._put(request, body)

    @ACP.post("/store", may="chat.call", refuses=(), at_once=AT_ONCE)
    def acp_store_item(self, request: Request, body: ItemPut) -> ItemAnswer:
        """Put an item, and return it."""
        return item_answer(request, self._put(request, body))

    @ACP.get(
        "/store/items",
        may="chat.call",
        ids=LISTED,
        at_once=AT_ONCE,
        parameters=(
            {"name": "key", "in": "query", "required": True, "schema": {"type": "string"}},
            {"name": "namespace", "in": "query", "schema": {"type": "array", "items": {"type": "string"}}},
        ),
    )
    def acp_get_item(self, request: Request) -> ItemAnswer:
        """Look at an item. Labels of its namespace are given one by one, or joined by dots."""
        keys = request.query_params.getlist("key")
        if len(keys) != 1 or not keys[0]:
            raise CallError("invalid", f"key is given {len(keys)} times; give it once", "key")
        given = request.query_params.getlist("namespace")
        labels = given[0].split(SEPARATOR) if len(given) == 1 and given[0] else given
        return item_answer(request, self._memory().get(self._labels(request, labels), keys[0]))

    @ACP.delete("/store/items", may="chat.call", ids=LISTED, status=204, at_once=AT_ONCE)
    def acp_delete_item(self, request: Request, body: ItemDelete) -> None:
        """Delete an item."""
        try:
            self._memory().delete(self._labels(request, body.namespace or []), body.key, actor=actor_of(request))
        except EventError as exc:
            raise CallError("invalid", str(exc)) from exc

    @ACP.post("/store/items/search", may="chat.call", refuses=(), at_once=AT_ONCE)
    def acp_search_items(self, request: Request, body: ItemSearch) -> ItemList:
        """List the items below a namespace whose values have some fields."""
        prefix, fields = logged_namespace(request, body.namespace_prefix or []), body.filter or {}
        stop = body.offset + body.limit
        items = self._memory().read(lambda state: list(islice(state.search(prefix, fields), body.offset, stop)))
        return ItemList(items=[item_answer(request, item) for item in items])

    @ACP.post("/store/namespaces", may="chat.call", refuses=(), at_once=AT_ONCE)
    def acp_list_namespaces(self, request: Request, body: NamespaceSearch) -> Response:
        """List namespaces with items."""
        prefix, suffix = logged_namespace(request, body.prefix or []), tuple(body.suffix or ())
        names = self._memory().read(lambda state: state.namespaces(prefix, suffix))
        labels = [own_labels(request, name)[: body.max_depth] for name in names]
        distinct = list(dict.fromkeys(tuple(name) for name in labels))
        return JSONResponse([list(name) for name in distinct[body.offset : body.offset + body.limit]])

    def _put(self, request: Request, body: ItemPut) -> MemoryItem:
        namespace = self._labels(request, body.namespace)
        try:
            value, subject = json_text.one_line(body.value), subject_of(request, None)
            return self._memory().put(namespace, body.key, value, actor=actor_of(request), subject=subject)
        except EventError as exc:
            raise CallError("invalid", str(exc)) from exc

    def _labels(self, request: Request, labels: list[str]) -> tuple[str, ...]:
        """Return a namespace of items. Raises CallError for one without a label."""
        if not labels:
            raise CallError("invalid", "namespace has no label; name at least one", "namespace")
        return logged_namespace(request, labels)
