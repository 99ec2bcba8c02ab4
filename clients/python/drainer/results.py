"""Waits for results, with one thread and one connection for all waits of a process on one database."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import math
import os
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .connections import misuse, plain_cursor, unwrapped
from .errors import SENTENCES, SETTLED, DrainerError, NotCommitted

QUICKEST, SLOWEST = 0.05, 0.25  # seconds between two looks, unless a notification comes
BREATH = 0.005  # seconds at least between two looks, however many notifications come
IDLE = 5.0  # seconds until a connection without waits is closed
BATCH = 1000  # intents that one statement asks for
STUCK = 10.0  # seconds until a statement and its connection are given up, so that they do not block all waits

_log = logging.getLogger("drainer")

# From the second statement on settlements notify, so a look that follows misses none.
_LISTEN = ("LISTEN outbox_settled", "SELECT FROM outbox.await('{}')")
# Behind a pooler the driver's process id differs from the server's. A pooler would send the notifications of a LISTEN to
# its other clients, and PgBouncer from 1.18 to 1.20.0 may crash (pgbouncer#822).
_OWNS_SESSION = "SELECT pg_backend_pid() = CAST(CAST({} AS text) AS bigint)"
_SETTLED = "SELECT intent_id, status, provider_ref, CAST(response AS text), last_error FROM outbox.await(CAST({} AS bigint[]))"
_STILL_OPEN = "the transaction that enqueued it is still open; commit, and wait after that"
_TRANSACTION = "SELECT pg_xact_status(CAST(CAST({} AS text) AS xid8))"


@dataclass(frozen=True)
class Completed:
    """The effect happened. response and provider_ref are the provider's."""

    intent_id: int
    provider_ref: str | None
    response: Any
    status: str = "completed"

    @property
    def for_model(self) -> str:
        return SENTENCES["completed"]


@dataclass(frozen=True)
class Pending:
    """The intent has not settled yet, and still will. This is no failure."""

    intent_id: int
    status: str = "pending"

    @property
    def for_model(self) -> str:
        return SENTENCES["pending"]


@dataclass(frozen=True)
class Way:
    """A function that opens connections, and the place to which one of them led. Ways to the same place are equal."""

    place: tuple[str | None, frozenset[tuple[str, str]]]
    connect: Callable[[], Any] = field(compare=False)

    def __call__(self) -> Any:
        return self.connect()


def way(connect: Callable[[], Any], connection: Any) -> Callable[[], Any]:
    """Returns a Way for connect, which opened connection, or connect itself if the driver does not tell the place."""
    place = _place(connection)
    if place is None:
        return connect
    return Way(place, connect)


def _place(connection: Any) -> tuple[str | None, frozenset[tuple[str, str]]] | None:
    """Returns the login and the place of a connection of psycopg or psycopg2, and None for other drivers."""
    try:
        if hasattr(connection, "detach"):
            connection = getattr(connection, "driver_connection", None) or connection.connection
        info = connection.info
        given = info.get_parameters() if hasattr(connection, "pgconn") else info.dsn_parameters  # without the password
        names = ("application_name", "fallback_application_name")  # which may name the run
        return info.parameter_status("session_authorization"), frozenset((k, v) for k, v in given.items() if k not in names)
    except Exception:  # another driver, or a lost connection
        return None


class _Elsewhere(Exception):
    """The function of a Way leads to another place than before."""


class Waiting:
    """One wait of one caller."""

    waiter: Waiter

    def __init__(
        self, database: str | Callable[[], Any], intent_id: int, xid: str | None, created: bool,
        awaited: asyncio.Future[Completed | Pending] | None = None,
    ) -> None:
        self.database = database
        self.future: concurrent.futures.Future[Completed | Pending] = concurrent.futures.Future()
        self.awaited = awaited  # the future of an asynchronous caller, in place of future
        self.intent_id = intent_id
        self.xid = xid
        self.committed = False  # its transaction has committed, but the intent was not visible yet
        self.may_be_open = xid is not None and not created  # a repeated enqueue returns an earlier intent, which is visible inside the open transaction too
        self.forgotten = False

    def pending(self) -> Pending:
        return Pending(self.intent_id)

    def forget(self) -> None:
        self.forgotten = True
        self.waiter.remove(self)

    def settled(self, status: str, provider_ref: str | None, response: str | None, error: str | None) -> Completed | DrainerError:
        answer = None if response is None else _parsed(response)
        if status in SETTLED:
            return SETTLED[status](self.intent_id, status, provider_ref, answer, error)
        return Completed(self.intent_id, provider_ref, answer)


def _tell(outcomes: dict[Waiting, Completed | DrainerError]) -> None:
    """Ends these waits. It wakes each event loop only once, because a woken loop takes the interpreter from this thread."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Completed | Pending], Completed | DrainerError]]] = {}
    for waiting, outcome in outcomes.items():
        if waiting.awaited is None:
            _end(waiting.future, outcome)
        else:
            loops.setdefault(waiting.awaited.get_loop(), []).append((waiting.awaited, outcome))
    for loop, ended in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed, and its waits ended with it
            loop.call_soon_threadsafe(_end_all, ended)


def _end_all(ended: list[tuple[asyncio.Future[Completed | Pending], Completed | DrainerError]]) -> None:
    for awaited, outcome in ended:
        _end(awaited, outcome)


def _end(future: asyncio.Future[Completed | Pending] | concurrent.futures.Future[Completed | Pending], outcome: Completed | DrainerError) -> None:
    if future.done():
        return
    if isinstance(outcome, Completed):
        future.set_result(outcome)
    else:
        future.set_exception(outcome)


def _parsed(response: str) -> Any:
    """Returns the value, or the text if it is nested too deep or has a number of too many digits for Python's parser."""
    try:
        return json.loads(response)
    except (RecursionError, ValueError):
        return response


class Waiter:
    """Asks for the results of all waits on one database with one statement, as long as there are waits."""

    def __init__(self, database: str | Callable[[], Any]) -> None:
        self.database = database
        self._changed = threading.Condition()
        self._waits: set[Waiting] = set()
        self._new = False
        self._running = False
        self._reached = False  # after a first connection failures are retried; before it, a wrong login fails the waits

    def add(self, waiting: Waiting) -> None:
        with self._changed:
            waiting.waiter = self
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
        if waiting.forgotten:  # while _part moved it from another waiter
            self.remove(waiting)

    def remove(self, waiting: Waiting) -> None:
        with self._changed:
            self._waits.discard(waiting)

    def _run(self) -> None:
        link: _Link | None = None
        pause = QUICKEST
        is_out = False  # the database is away, and that was logged
        while True:
            with self._changed:
                if not self._waits and not self._changed.wait_for(lambda: bool(self._waits), IDLE):
                    self._running = False
                    break
                waits, self._new = list(self._waits), False
            try:
                if link is None:
                    link = _connect(self.database)
                    self._reached = True
                    link.listen()
                began = time.monotonic()
                self._look(link, waits)
                is_out = False
                took = time.monotonic() - began
                time.sleep(max(BREATH - took, took / 4))  # so that many waits leave a fifth of the time free
                pause = QUICKEST if self._has_news(link, pause) else min(2 * pause, SLOWEST)
            except _Elsewhere:
                self._part(waits)
            except BaseException as error:  # also SystemExit and the like from the caller's function
                _close(link)
                link = None
                ours = isinstance(error, DrainerError) or not isinstance(error, Exception)
                if ours or not _passes(error) or not (self._reached or _sqlstate(error) or _no_place(error) or _is_down(error)):
                    self._fail(waits, error)
                elif not is_out:
                    is_out = True
                    _log.warning("drainer: the database cannot be asked for results: %s; it is asked again", type(error).__name__)
                time.sleep(pause)
                pause = min(2 * pause, SLOWEST)
        _close(link)
        with _waiters_lock:  # begin starts waits under this lock, so that a removed waiter has none
            if not self._running and _waiters.get(self.database) is self:
                del _waiters[self.database]

    def _part(self, waits: list[Waiting]) -> None:
        """Gives each function a waiter of its own, because they may lead to different places now."""
        for waiting in waits:
            self.remove(waiting)
            try:
                with _waiters_lock:
                    _join(waiting.database.connect if isinstance(waiting.database, Way) else waiting.database, waiting)
            except RuntimeError as error:  # no thread can be started
                self._fail([waiting], error)

    def _has_news(self, link: _Link, pause: float) -> bool:
        """Waits up to pause seconds for a notification or a new wait, and reports whether one came."""
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
            settled = {w: rows[w.intent_id] for w in batch if w.intent_id in rows and rows[w.intent_id][1] is not None}
            self._end({waiting: waiting.settled(*row[1:]) for waiting, row in settled.items()})
            for waiting in batch:
                if waiting in settled:
                    continue
                reason = None
                if waiting.intent_id in rows:
                    reason = self._why_missing(link, waiting)
                elif waiting.may_be_open:
                    waiting.may_be_open = False
                    if self._state(link, waiting) == "in progress":
                        reason = _STILL_OPEN
                if reason:
                    self._end({waiting: _not_committed(waiting, reason)})

    def _state(self, link: _Link, waiting: Waiting) -> str | None:
        """Returns the state of the transaction that enqueued, or None if it is unknown."""
        if waiting.xid is not None:
            try:
                state: str | None = link.ask(_TRANSACTION, waiting.xid)[0][0]
                return state
            except Exception as error:
                if _sqlstate(error) != "22023":  # this database has not reached the id, so it lost the commit
                    raise
        return None

    def _why_missing(self, link: _Link, waiting: Waiting) -> str | None:
        state = self._state(link, waiting)
        if state == "committed" and not waiting.committed:
            waiting.committed = True  # it committed between the two statements
            return None
        if state == "in progress":
            return _STILL_OPEN
        if state == "aborted":
            return "the transaction that enqueued it was rolled back; nothing will happen"
        return "it is not there: it was never committed, or this login may not see it"

    def _end(self, outcomes: dict[Waiting, Completed | DrainerError]) -> None:
        with self._changed:
            self._waits.difference_update(outcomes)
        _tell(outcomes)

    def _fail(self, waits: list[Waiting], error: BaseException) -> None:
        text = _text(error) if isinstance(error, DrainerError) else f"the database cannot be asked for results: {type(error).__name__}: {_text(error)}"
        outcomes: dict[Waiting, Completed | DrainerError] = {}
        for waiting in waits:
            # Every caller raises an error of its own. An asynchronous caller could not raise a StopIteration at all.
            outcomes[waiting] = told = misuse(error) or DrainerError(text)
            told.__cause__ = error
        self._end(outcomes)


def _not_committed(waiting: Waiting, reason: str) -> NotCommitted:
    return NotCommitted(f"intent {waiting.intent_id}: {reason}")


_waiters: dict[str | Callable[[], Any], Waiter] = {}
_waiters_lock = threading.Lock()


def _after_fork() -> None:
    global _waiters_lock
    _waiters_lock = threading.Lock()
    _waiters.clear()  # their threads exist only in the parent


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def begin(
    database: str | Callable[[], Any], intent_id: int, xid: str | None, created: bool = True,
    awaited: asyncio.Future[Completed | Pending] | None = None,
) -> Waiting:
    waiting = Waiting(database, intent_id, xid, created, awaited)
    with _waiters_lock:
        _join(database, waiting)
    return waiting


def _join(database: str | Callable[[], Any], waiting: Waiting) -> None:
    waiter = _waiters.setdefault(database, Waiter(database))
    waiter.database = database  # the newest of equal ways, whose function is the likeliest to work
    waiter.add(waiting)


def wait(database: str | Callable[[], Any], intent_id: int, xid: str | None, created: bool, timeout: float) -> Completed | Pending:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise DrainerError("wait would stop the event loop; in asynchronous programs write: await box.result(…)")
    waiting = begin(database, intent_id, xid, created)
    try:
        return waiting.future.result(min(timeout, threading.TIMEOUT_MAX))
    except (concurrent.futures.TimeoutError, TimeoutError):
        return waiting.pending()
    finally:
        waiting.forget()


class _Link:
    """A connection of any driver that commits each statement by itself."""

    def __init__(
        self, ask: Callable[[str, str], Sequence[Any]], listen: Callable[[], None], hears: Callable[[float], bool], close: Callable[[], None],
    ) -> None:
        self.ask = ask
        self.listen = listen  # does nothing behind a pooler
        self.hears = hears  # reports whether a notification came within so many seconds
        self.close = close


def _connect(database: str | Callable[[], Any]) -> _Link:
    if callable(database):
        place, connect = (database.place, database.connect) if isinstance(database, Way) else (None, database)
        owner = _owner(connect)
        if hasattr(owner, "getconn") or _is_shared(getattr(owner, "pool", None)):  # a pool of psycopg or psycopg2, or an engine
            raise DrainerError(NO_POOL)
        return _dbapi(connect(), place)
    if (connection := opened(database)) is not None:
        return _dbapi(connection)
    try:
        import asyncpg
    except ImportError:
        raise DrainerError("waiting for a result needs psycopg, psycopg2 or asyncpg") from None
    return _over_asyncpg(asyncpg, _plain(database))


def _plain(dsn: str) -> str:
    return re.sub(r"^(postgres(?:ql)?)\+\w+:", r"\1:", dsn)  # SQLAlchemy's form, such as postgresql+psycopg:


def opened(database: str) -> Any:
    """Returns a connection of psycopg or psycopg2, or None if neither is installed."""
    dsn = _plain(database)
    limits: dict[str, Any] = {name: value for name, value in (("connect_timeout", 10), ("tcp_user_timeout", 10000)) if name not in dsn}
    try:
        import psycopg
    except ImportError:
        pass
    else:
        return psycopg.connect(dsn, **limits)
    try:
        import psycopg2
    except ImportError:
        return None
    return psycopg2.connect(dsn, **limits)


NO_POOL = "a wait keeps its connection: let the function open one, not take it from a pool"
_OPEN = "the function gave a connection that is in a transaction: let it return one that commits it, or opens another"


def _dbapi(connection: Any, place: object = None) -> _Link:
    if hasattr(connection, "detach"):
        connection = _out_of_sqlalchemys_pool(connection)
    elif pool := pool_of(connection):  # the pool needs its connection back
        pool.putconn(connection)
        raise DrainerError(NO_POOL)
    connection = unwrapped(connection)
    if connection.info.transaction_status != 0:  # 0 is libpq's idle. Another user may go on with the transaction, so the connection stays open
        raise DrainerError(_OPEN)
    if place is not None and _place(connection) != place:
        connection.close()
        raise _Elsewhere
    connection.autocommit = True
    if hasattr(connection, "prepare_threshold"):
        connection.prepare_threshold = None  # psycopg 3 would prepare repeated statements, which a pooler loses
    heard: list[Any] = getattr(connection, "notifies", [])  # psycopg2 fills this list by itself
    if hasattr(connection, "add_notify_handler"):
        heard = []
        connection.add_notify_handler(heard.append)

    # The drivers have no timeout for a server that does not answer. A timeout set in the session could reach other clients of a
    # pooler.
    wire = socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM)

    deadline = math.inf
    closed = threading.Event()

    def cut_what_is_stuck() -> None:
        while not closed.wait(STUCK / 4):
            if time.monotonic() > deadline:
                _cut(wire)

    # One thread serves all statements, because starting a thread takes longer than a statement.
    watch = threading.Thread(target=cut_what_is_stuck, name="drainer-watch", daemon=True)

    @contextlib.contextmanager
    def watched() -> Iterator[Any]:
        nonlocal deadline
        if not watch.is_alive():
            watch.start()
        deadline = time.monotonic() + STUCK
        try:
            with plain_cursor(connection) as cursor:
                yield cursor
        finally:
            deadline = math.inf

    def ask(statement: str, value: str) -> Sequence[Any]:
        with watched() as cursor:
            cursor.execute(statement.format("%s"), (value,))
            rows: Sequence[Any] = cursor.fetchall()
            return rows

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
        if not ask(_OWNS_SESSION, str(connection.info.backend_pid))[0][0]:
            return
        with watched() as cursor:
            for statement in _LISTEN:
                cursor.execute(statement)

    def close() -> None:
        closed.set()
        wire.close()
        connection.close()

    return _Link(ask, listen, hears, close)


def pool_of(connection: Any, connect: object = None) -> Any:
    """Returns the pool of psycopg or psycopg2 from which the connection was taken, or None.

    A connection of psycopg2 does not know its pool. The pool is known only if connect, which returned the connection,
    is a method of the pool.
    """
    if hasattr(connection, "detach"):  # a connection of SQLAlchemy returns to its pool when it is closed
        return None
    owner = _owner(connect)
    return getattr(connection, "_pool", None) or (owner if hasattr(owner, "putconn") else None)


def _owner(connect: object) -> Any:
    """Returns the object whose method connect is, also inside a functools.partial, or None."""
    return getattr(getattr(connect, "func", connect), "__self__", None)


def _is_shared(pool: Any) -> bool:
    """Reports whether it is a pool of SQLAlchemy that shares one connection, and rolls it back when any user returns it."""
    return type(pool).__name__ in ("StaticPool", "SingletonThreadPool")


def _out_of_sqlalchemys_pool(connection: Any) -> Any:
    """Takes the driver's connection out of the pool, which makes another one in its place."""
    if _is_shared(connection._pool):
        # While the wrapper has the driver's connection, closing it would roll back another user's open transaction.
        setattr(connection, "dbapi_connection" if hasattr(connection, "dbapi_connection") else "connection", None)
        connection.close()
        raise DrainerError(NO_POOL)
    driver = getattr(connection, "driver_connection", None) or connection.connection
    connection.detach()
    try:
        driver.commit()  # a listener of the engine may have begun a transaction with settings that must stay
    except Exception:
        driver.close()
        raise
    return driver


def _cut(wire: socket.socket) -> None:
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except OSError:  # it was closed meanwhile
        pass


def _over_asyncpg(asyncpg: Any, dsn: str) -> _Link:
    loop = asyncio.new_event_loop()
    heard = asyncio.Event()

    async def listen() -> None:
        if not await connection.fetchval(_OWNS_SESSION.format("$1"), str(connection.get_server_pid())):
            return
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
        # asyncpg would encode an array itself; here it is sent as text.
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
        except Exception:  # a broken link is given up
            pass


def _sqlstate(error: BaseException) -> str:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def _no_place(error: BaseException) -> bool:
    """Reports whether SQLAlchemy's pool had no connection left."""
    return type(error).__name__ == "TimeoutError" and type(error).__module__ == "sqlalchemy.exc"


def _is_down(error: BaseException) -> bool:
    """Reports whether no server answers, or one that starts or stops. libpq has no SQLSTATE for it, nor for a wrong password."""
    says = "Is the server running|timeout expired|server closed the connection|Connection reset|the database system is"
    return isinstance(error, (ConnectionError, TimeoutError, asyncio.TimeoutError)) or re.search(says, _text(error)) is not None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error without a text must not end the thread
        return ""


def _passes(error: Any) -> bool:
    """Reports whether waiting helps: for a lost connection, a restart, a shortage, or a standby (25006) that may be promoted."""
    state = _sqlstate(error)
    return not state or state[:2] in ("08", "40", "53", "57", "58") or state in ("25006", "25P04", "55P03")
