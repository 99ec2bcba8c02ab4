"""Waits for results: one thread and one connection for all waits of a process on one database."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .connections import misuse
from .errors import SENTENCES, SETTLED, DrainerError, NotCommitted

QUICKEST, SLOWEST = 0.05, 0.25  # seconds between two looks, unless a notification comes
BREATH = 0.005  # seconds between two looks, however many notifications come
IDLE = 5.0  # seconds until a connection that serves no wait is closed
BATCH = 1000  # intents that one statement asks for
STUCK = 10.0  # seconds until a statement is given up with its connection, so that it does not stop all waits

_log = logging.getLogger("drainer")

# From the second statement on what settles notifies, so a look that follows misses nothing.
_LISTEN = ("LISTEN outbox_settled", "SELECT FROM outbox.await('{}')")
_SETTLED = "SELECT intent_id, status, provider_ref, CAST(response AS text), last_error FROM outbox.await(CAST({} AS bigint[]))"
_TRANSACTION = "SELECT pg_xact_status(CAST(CAST({} AS text) AS xid8))"


@dataclass(frozen=True)
class Completed:
    """It happened; response and provider_ref say how."""

    intent_id: int
    provider_ref: str | None
    response: Any
    status: str = "completed"

    @property
    def for_model(self) -> str:
        return SENTENCES["completed"]


@dataclass(frozen=True)
class Pending:
    """It has not settled yet, and still will. This is no failure."""

    intent_id: int
    status: str = "pending"

    @property
    def for_model(self) -> str:
        return SENTENCES["pending"]


class Waiting:
    """One wait of one caller."""

    def __init__(self, waiter: Waiter, intent_id: int, xid: str | None) -> None:
        self.future: concurrent.futures.Future[Completed | Pending] = concurrent.futures.Future()
        self.intent_id = intent_id
        self.xid = xid
        self.committed = False  # but not seen yet
        self._waiter = waiter

    def pending(self) -> Pending:
        return Pending(self.intent_id)

    def forget(self) -> None:
        self._waiter.remove(self)

    def settle(self, status: str, provider_ref: str | None, response: str | None, error: str | None) -> None:
        answer = None if response is None else _parsed(response)
        if status in SETTLED:
            self._end(SETTLED[status](self.intent_id, status, provider_ref, answer, error))
        else:
            self._end(Completed(self.intent_id, provider_ref, answer))

    def fail(self, error: BaseException) -> None:
        self._end(error)

    def _end(self, outcome: Completed | BaseException) -> None:
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Completed):
            self.future.set_result(outcome)
        else:
            self.future.set_exception(outcome)


def _parsed(response: str) -> Any:
    """A value, or the text where Python's parser gives up: nested too deep, or a number of too many digits."""
    try:
        return json.loads(response)
    except (RecursionError, ValueError):
        return response


class Waiter:
    """Asks for all waits on one database at once, while there are any."""

    def __init__(self, database: str | Callable[[], Any]) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._waits: set[Waiting] = set()
        self._new = False
        self._running = False
        self._reached = False  # a connection that could be made once is tried again; a wrong address is told

    def add(self, intent_id: int, xid: str | None) -> Waiting:
        waiting = Waiting(self, intent_id, xid)
        with self._changed:
            self._waits.add(waiting)
            self._new = True
            if not self._running:
                try:
                    threading.Thread(target=self._run, name="drainer-results", daemon=True).start()
                except RuntimeError:  # the next wait tries again
                    self._waits.discard(waiting)
                    raise
                self._running = True
            self._changed.notify()
        return waiting

    def remove(self, waiting: Waiting) -> None:
        with self._changed:
            self._waits.discard(waiting)

    def _run(self) -> None:
        link: _Link | None = None
        pause = QUICKEST
        while True:
            with self._changed:
                if not self._waits and not self._changed.wait_for(lambda: bool(self._waits), IDLE):
                    self._running = False
                    break
                waits, self._new = list(self._waits), False
            began = time.monotonic()
            try:
                if link is None:
                    link = _connect(self._database)
                    self._reached = True
                    link.listen()
                self._look(link, waits)
                time.sleep(max(BREATH, time.monotonic() - began))
                pause = QUICKEST if self._has_news(link, pause) else min(2 * pause, SLOWEST)
            except Exception as error:
                _close(link)
                link = None
                if not _passes(error) or not (self._reached or _sqlstate(error)):
                    self._fail(waits, error)
                else:
                    _log.warning("drainer: the database cannot be asked for results: %s; it is asked again", type(error).__name__)
                time.sleep(pause)
                pause = min(2 * pause, SLOWEST)
        _close(link)
        with _waiters_lock:  # begin starts waits under it, so that a waiter which is given up has none
            if not self._running and _waiters.get(self._database) is self:
                del _waiters[self._database]

    def _has_news(self, link: _Link, pause: float) -> bool:
        """Waits for a notification or a new wait, but no longer than pause."""
        until = time.monotonic() + pause
        while not self._new:
            left = until - time.monotonic()
            if left <= 0:
                return False
            if link.hears(min(left, QUICKEST)):
                return True
        return True

    def _look(self, link: _Link, waits: list[Waiting]) -> None:
        for start in range(0, len(waits), BATCH):
            batch = waits[start : start + BATCH]
            numbers = "{" + ",".join(str(n) for n in sorted({w.intent_id for w in batch})) + "}"
            rows = {row[0]: row for row in link.ask(_SETTLED, numbers)}
            for waiting in batch:
                row = rows.get(waiting.intent_id)
                if row is None:
                    continue  # it has not settled
                if row[1] is None:
                    self._look_for_transaction(link, waiting)
                    continue
                waiting.settle(*row[1:])
                self.remove(waiting)

    def _look_for_transaction(self, link: _Link, waiting: Waiting) -> None:
        state = None
        if waiting.xid is not None:
            try:
                state = link.ask(_TRANSACTION, waiting.xid)[0][0]
            except Exception as error:
                if _sqlstate(error) != "22023":  # an id that this database has not reached: it lost the commit
                    raise
        if state == "committed" and not waiting.committed:
            waiting.committed = True  # in the moment between the two questions
            return
        reason = "it is not there: it was never committed, or this login may not see it"
        if state == "in progress":
            reason = "the transaction that enqueued it is still open; commit, and wait after that"
        elif state == "aborted":
            reason = "the transaction that enqueued it was rolled back; nothing will happen"
        waiting.fail(NotCommitted(f"intent {waiting.intent_id}: {reason}"))
        self.remove(waiting)

    def _fail(self, waits: list[Waiting], error: Exception) -> None:
        for waiting in waits:
            if (named := misuse(error)) is not None:  # a new one each: every thread raises its own
                named.__cause__ = error
            waiting.fail(named or error)
            self.remove(waiting)


_waiters: dict[str | Callable[[], Any], Waiter] = {}
_waiters_lock = threading.Lock()


def _after_fork() -> None:
    global _waiters_lock
    _waiters_lock = threading.Lock()
    _waiters.clear()  # their threads stayed in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def begin(database: str | Callable[[], Any], intent_id: int, xid: str | None) -> Waiting:
    with _waiters_lock:
        return _waiters.setdefault(database, Waiter(database)).add(intent_id, xid)


def wait(database: str | Callable[[], Any], intent_id: int, xid: str | None, timeout: float) -> Completed | Pending:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise DrainerError("wait would stop the event loop; in asynchronous programs write: await box.result(…)")
    waiting = begin(database, intent_id, xid)
    try:
        return waiting.future.result(min(timeout, threading.TIMEOUT_MAX))
    except (concurrent.futures.TimeoutError, TimeoutError):
        return waiting.pending()
    finally:
        waiting.forget()


class _Link:
    """A connection that commits each statement by itself, whichever driver it is of."""

    def __init__(
        self, ask: Callable[[str, str], Sequence[Any]], listen: Callable[[], None], hears: Callable[[float], bool], close: Callable[[], None],
    ) -> None:
        self.ask = ask
        self.listen = listen
        self.hears = hears  # whether a notification came, within so many seconds
        self.close = close


def _connect(database: str | Callable[[], Any]) -> _Link:
    if callable(database):
        return _dbapi(database())
    dsn = re.sub(r"^(postgres(?:ql)?)\+\w+:", r"\1:", database)  # SQLAlchemy's form
    limits: dict[str, Any] = {name: value for name, value in (("connect_timeout", 10), ("tcp_user_timeout", 10000)) if name not in dsn}
    try:
        import psycopg
    except ImportError:
        pass
    else:
        return _dbapi(psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **limits))
    try:
        import psycopg2
    except ImportError:
        pass
    else:
        return _dbapi(psycopg2.connect(dsn, **limits))
    try:
        import asyncpg
    except ImportError:
        raise DrainerError("waiting for a result needs psycopg, psycopg2 or asyncpg") from None
    return _over_asyncpg(asyncpg, dsn)


def _dbapi(connection: Any) -> _Link:
    connection.autocommit = True
    heard: list[Any] = getattr(connection, "notifies", [])  # psycopg2's, which it fills by itself
    if hasattr(connection, "add_notify_handler"):
        heard = []
        connection.add_notify_handler(heard.append)

    # The drivers have no limit for a server that is there and says nothing; a pooler would give one of the server's to others.
    wire = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)

    def ask(statement: str, value: str) -> Sequence[Any]:
        watch = threading.Timer(STUCK, _cut, (wire,))
        watch.daemon = True
        watch.start()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement.format("%s"), (value,))
                return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in cursor.fetchall()]
        finally:
            watch.cancel()

    def hears(seconds: float) -> bool:
        if not heard:
            with selectors.DefaultSelector() as selector:
                selector.register(connection.fileno(), selectors.EVENT_READ)
                if selector.select(seconds):
                    if hasattr(connection, "pgconn"):
                        connection.pgconn.consume_input()
                        while notification := connection.pgconn.notifies():
                            heard.append(notification)
                    else:
                        connection.poll()
        was, heard[:] = bool(heard), []
        return was

    def listen() -> None:
        with connection.cursor() as cursor:
            for statement in _LISTEN:
                cursor.execute(statement)

    def close() -> None:
        wire.close()
        connection.close()

    return _Link(ask, listen, hears, close)


def _cut(wire: socket.socket) -> None:
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was closed in between
        pass


def _over_asyncpg(asyncpg: Any, dsn: str) -> _Link:
    loop = asyncio.new_event_loop()
    heard = asyncio.Event()

    async def listen() -> None:
        await connection.add_listener("outbox_settled", lambda *_: heard.set())
        await connection.execute(_LISTEN[1])

    async def hear(seconds: float) -> bool:
        try:
            await asyncio.wait_for(heard.wait(), seconds)
        except (asyncio.TimeoutError, TimeoutError):
            return False
        heard.clear()
        return True

    try:
        connection = loop.run_until_complete(asyncpg.connect(dsn, timeout=10, command_timeout=30, statement_cache_size=0))
    except BaseException:
        loop.close()
        raise

    def ask(statement: str, value: str) -> Sequence[Any]:
        # An array is sent as its text, too.
        asked = statement.format("CAST($1 AS text)")
        return [tuple(row) for row in loop.run_until_complete(connection.fetch(asked, value))]

    def close() -> None:
        connection.terminate()
        loop.close()

    return _Link(ask, lambda: loop.run_until_complete(listen()), lambda seconds: loop.run_until_complete(hear(seconds)), close)


def _close(link: _Link | None) -> None:
    if link is not None:
        try:
            link.close()
        except Exception:  # it is broken, and given up
            pass


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _passes(error: Exception) -> bool:
    """A lost connection, a restart or a shortage passes; a missing right does not."""
    state = _sqlstate(error)
    return not state or state[:2] in ("08", "40", "53", "57", "58") or state == "55P03"
