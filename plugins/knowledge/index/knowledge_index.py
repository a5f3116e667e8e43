"""Follow documents, and keep the indexes of them as the settings say, while those of before answer.

    documents ──► DocumentLog ──► changes ──► IndexGeneration that answers, and the one that is made
    pointer: the recipe of before ──► made first, of kept vectors ──► answers
    settings: another recipe ──► made apart ──► whole ──► pointer ──► answers; vectors of the other one are deleted

Nothing but vectors and the pointer is kept on the disk, and all of it may be deleted.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import replace

from plugins.knowledge.embedders import embedder
from plugins.knowledge.index.corpus import SearchQuery
from plugins.knowledge.index.generation import FoundChunks, IndexGeneration, IndexRecipe
from plugins.knowledge.index.vector_store import SUFFIX
from plugins.knowledge.log.document_log import DocumentLog
from plugins.knowledge.log.knowledge_settings import Knowledge
from schemas import json_text
from streams.errors import CallError, StreamwardError
from streams.kafka.client import POLL_S
from streams.kafka.record import Record
from streams.settings.model import Settings

POINTER = "current.json"
"""The recipe of the index that answers."""
AGAIN_S = 1.0
"""After an error of the embedder or of the disk it is tried again."""


class KnowledgeIndex(DocumentLog):
    """Documents and their indexes, which are made from the first search on. Use as a context manager."""

    def __init__(self, settings: Settings) -> None:
        """Raises NotFoundError without the topic, LogError if the broker does not answer."""
        super().__init__(settings)
        self._rule = settings.of_plugin(Knowledge)
        self._current: IndexGeneration | None = None
        self._ahead: list[IndexGeneration] = []
        """Those that are made: that of the pointer, and that of the settings."""
        self._problem = ""
        self._maker = threading.Thread(target=self._make, name="makes-indexes", daemon=True)
        self._starting = threading.Lock()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._maker.ident is not None:
            self._maker.join()

    def start(self) -> None:
        """Make the indexes, if they are not being made yet."""
        with self._starting:
            if self._maker.ident is None:
                self._maker.start()

    def search(self, index: str, query: SearchQuery, wait_s: float) -> FoundChunks:
        """Return the best chunks of an index; its first one is waited for. `query` gets the vector of its text.

        Raises NotFoundError, CallError if the index is not whole by then, the embedder's errors, LogError.
        """
        generation = self.whole(wait_s)
        if query.mode != "words":
            query = replace(query, vector=generation.embedder.embed([query.text])[0])
        return generation.search(index, query)

    def whole(self, wait_s: float) -> IndexGeneration:
        """Return the indexes that answer. Raises CallError if there are none in so many seconds, LogError."""
        self.start()
        with self._changed:
            self._changed.wait_for(lambda: self._current is not None or self._error is not None, wait_s)
            self._raise_error()
            if self._current is None:
                documents = sum(state.current is not None for state in self._states.values())
                left = sum(generation.pending for generation in self._ahead) if self._ahead else documents
                problem = self._problem or f"{left:,} documents are still to be indexed"
                raise CallError("busy", f"the index is being made: {problem}; try again, or wait longer")
            return self._current

    def _take(self, record: Record) -> None:
        super()._take(record)
        document_id = (record.key or b"").decode(errors="replace")
        if document_id in self._states:
            current = self._states[document_id].current
            for generation in self._generations():
                generation.change(document_id, current)

    def _generations(self) -> list[IndexGeneration]:
        return [*filter(None, (self._current,)), *self._ahead]

    # --- the thread that makes them ---------------------------------------------------------------------------------

    def _make(self) -> None:
        while not self._over.is_set():
            try:
                if not self._generations():
                    self._begin()
                self._step()
                self._problem = ""
            except (StreamwardError, OSError) as exc:
                if str(exc) != self._problem:
                    self._log.warning("the index waits: %s", exc)
                self._problem = str(exc)
                self._over.wait(AGAIN_S)

    def _begin(self) -> None:
        """Begin the indexes of the pointer and of the settings with the documents of now."""
        rule, before = self._rule, self._pointer()
        recipes = [IndexRecipe(rule.embedder, embedder(rule.embedder).digest, rule.chunk_characters)]
        if before is not None and before not in recipes:
            with contextlib.suppress(StreamwardError):  # it cannot be had any more: its vectors are of no use
                if embedder(before.embedder).digest == before.digest:
                    recipes.insert(0, before)
        generations = [IndexGeneration(recipe, embedder(recipe.embedder), rule.folder) for recipe in recipes]
        with self._changed:
            for document_id, state in self._states.items():
                for generation in generations:
                    if state.current is not None:
                        generation.change(document_id, state.current)
            self._ahead = generations

    def _step(self) -> None:
        """Index some documents, or wait for changes."""
        current, ahead = self._current, self._ahead
        if current is not None and current.pending:
            current.embed()
        elif ahead and ahead[0].pending:
            ahead[0].embed()
        elif ahead:
            self._swap(ahead[0])
        else:
            with self._changed:
                self._changed.wait_for(lambda: current is None or current.pending or self._over.is_set(), POLL_S)

    def _swap(self, whole: IndexGeneration) -> None:
        """Let an index that is whole answer from now on."""
        with self._changed:
            self._current = whole
            self._ahead.remove(whole)
            self._changed.notify_all()
        if self._ahead:
            return
        folder, name = self._rule.folder, f"{whole.recipe.digest}{SUFFIX}"
        whole.forget_others()
        half = folder / f".{POINTER}-{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        half.write_text(json.dumps(whole.recipe._asdict()) + "\n", encoding="utf-8")
        half.replace(folder / POINTER)
        for path in folder.glob(f"*{SUFFIX}"):
            if path.name != name:
                path.unlink(missing_ok=True)

    def _pointer(self) -> IndexRecipe | None:
        path = self._rule.folder / POINTER
        try:
            return IndexRecipe.read(json_text.parse(path.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError):
            return None
