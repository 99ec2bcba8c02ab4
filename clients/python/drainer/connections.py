"""Runs outbox.enqueue over each driver, and checks that a transaction is open.

A driver is imported only when a connection of it is passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from .errors import REFUSALS, DrainerError, NotAllowed, NotInTransaction, Refused, TransactionAborted

# Every value is sent as text, because a driver's own codec for jsonb would encode it twice. results.py looks up the
# transaction's id if it does not find the intent.
_STATEMENT = (
    "SELECT e.intent_id, e.created, e.status, e.idempotency_key, CAST(pg_current_xact_id() AS text)"
    " FROM outbox.enqueue(CAST({} AS text), CAST({} AS text), CAST({} AS text), CAST({} AS text),"
    " CAST(CAST({} AS text) AS jsonb), CAST(CAST({} AS text) AS timestamptz), CAST(CAST({} AS text) AS jsonb)) AS e"
)
_FORMAT = _STATEMENT.format(*["%s"] * 7)
_DOLLAR = _STATEMENT.format(*(f"${n}" for n in range(1, 8)))
_NAMED = _STATEMENT.format(*(f":p{n}" for n in range(7)))

_POOLS = {
    ("psycopg_pool", "BasePool"), ("psycopg2", "AbstractConnectionPool"), ("asyncpg", "Pool"),
    ("sqlalchemy", "Engine"), ("sqlalchemy", "AsyncEngine"),
    ("sqlalchemy", "sessionmaker"), ("sqlalchemy", "async_sessionmaker"),
}

Row = Sequence[Any]


def enqueue(connection: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    """Runs outbox.enqueue and returns the Intent, or an awaitable of it if the driver is asynchronous."""
    connection = unwrapped(connection)
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(connection).__mro__}
    if kinds & _POOLS:
        raise NotInTransaction("this is a pool or a factory; take a connection or session, begin a transaction, and pass that")
    drivers: dict[tuple[str, str], Callable[..., Any]] = {
        ("psycopg", "AsyncConnection"): _psycopg_async,
        ("psycopg", "Connection"): _psycopg,
        ("psycopg2", "connection"): _psycopg,
        ("asyncpg", "Connection"): _asyncpg,
        ("asyncpg", "PoolConnectionProxy"): _asyncpg,
        ("sqlalchemy", "AsyncSession"): _sqlalchemy_async,
        ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async,
        ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async,
        ("sqlalchemy", "Session"): _sqlalchemy,
        ("sqlalchemy", "scoped_session"): _sqlalchemy,
        ("sqlalchemy", "Connection"): _sqlalchemy,
        ("django", "BaseDatabaseWrapper"): _django,
        ("django", "ConnectionProxy"): _django,
    }
    for kind, ask in drivers.items():
        if kind in kinds:
            return ask(connection, values, intent)
    if kinds & {("psycopg", "BaseCursor"), ("psycopg2", "cursor")}:
        return enqueue(connection.connection, values, intent)
    raise TypeError(
        f"{type(connection).__module__}.{type(connection).__qualname__} is no connection that is known here: pass one of"
        " psycopg, psycopg2, asyncpg or Django, or a Session or Connection of SQLAlchemy"
    )


def unwrapped(connection: Any) -> Any:
    """Returns the connection behind a tracer's proxy, such as one of wrapt, because the proxy has another type."""
    while (inner := getattr(connection, "__wrapped__", None)) is not None:
        connection = inner
    return connection


def _check_open(autocommit: bool, status: int) -> None:
    # 0 is libpq's idle. With autocommit off the driver begins a transaction by itself.
    if autocommit and status == 0:
        raise NotInTransaction(
            "autocommit is on and no transaction is open: the intent would commit without the agent's state."
            " Wrap both in one transaction"
        )


def plain_cursor(connection: Any) -> Any:
    """Returns a cursor that takes %s and returns tuples, even if the connection is set to other cursors and rows."""
    if hasattr(connection, "pgconn"):
        from psycopg import Cursor
        from psycopg.rows import tuple_row

        return Cursor(connection, row_factory=tuple_row)
    from psycopg2.extensions import cursor

    return connection.cursor(cursor_factory=cursor)


def _psycopg(connection: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    _check_open(connection.autocommit, connection.info.transaction_status)
    try:
        with plain_cursor(connection) as cursor:
            cursor.execute(_FORMAT, values)
            return intent(cursor.fetchone())
    except Exception as error:
        _translate(error)


async def _psycopg_async(connection: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    _check_open(connection.autocommit, connection.info.transaction_status)
    try:
        async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
            await cursor.execute(_FORMAT, values)
            row: Any = await cursor.fetchone()
            return intent(row)
    except Exception as error:
        _translate(error)


async def _asyncpg(connection: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    if not connection.is_in_transaction():
        raise NotInTransaction("no transaction is open; write: async with connection.transaction():")
    try:
        return intent(await connection.fetchrow(_DOLLAR, *values))
    except Exception as error:
        _translate(error)


def _check_sqlalchemy(connection: Any) -> None:
    if connection.dialect.name != "postgresql":
        raise TypeError(f"this is a connection to {connection.dialect.name}; the outbox lives in Postgres")
    driver = connection.connection
    if getattr(getattr(driver, "dbapi_connection", driver), "autocommit", False):
        raise NotInTransaction("the isolation level is AUTOCOMMIT: the intent would commit without the agent's state")
    # Connections of version 1.4 commit by themselves unless future=True.
    if not getattr(connection, "_is_future", True) and not connection.in_transaction():
        raise NotInTransaction("no transaction is open; write: with connection.begin():")


def _sqlalchemy(target: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    from sqlalchemy import text

    try:
        connection = target.connection() if callable(getattr(target, "connection", None)) else target
    except Exception as error:
        _translate(error)
    _check_sqlalchemy(connection)
    if getattr(target, "autoflush", False):
        target.flush()  # the agent's state is written before its intent, because the outbox may require that
    try:
        return intent(connection.execute(text(_NAMED), _named(values)).one())
    except Exception as error:
        _translate(error)


async def _sqlalchemy_async(target: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    from sqlalchemy import text

    try:
        connection = target if hasattr(target, "sync_connection") else await target.connection()
    except Exception as error:
        _translate(error)
    # Once it is connected, these properties of the driver's connection need no await.
    _check_sqlalchemy(connection.sync_connection)
    if getattr(target, "autoflush", False):
        await target.flush()
    try:
        return intent((await connection.execute(text(_NAMED), _named(values))).one())
    except Exception as error:
        _translate(error)


def _named(values: Sequence[str | None]) -> dict[str, str | None]:
    return {f"p{n}": value for n, value in enumerate(values)}


def _django(connection: Any, values: Sequence[str | None], intent: Callable[[Row], Any]) -> Any:
    if connection.vendor != "postgresql":
        raise TypeError(f"this is a connection to {connection.vendor}; the outbox lives in Postgres")
    if not connection.in_atomic_block and connection.get_autocommit():
        raise NotInTransaction("no transaction is open; write: with transaction.atomic():")
    try:
        with connection.cursor() as cursor:
            cursor.execute(_FORMAT, values)
            return intent(cursor.fetchone())
    except Exception as error:
        _translate(error)


def _translate(error: Exception) -> NoReturn:
    """Raises this package's error for a refusal or a misuse, or else the driver's own error unchanged."""
    for cause in _causes(error):
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if sqlstate in REFUSALS:
            raise _refusal(REFUSALS[sqlstate], cause) from error
    if (named := misuse(error)) is not None:
        raise named from error
    raise error


def misuse(error: BaseException) -> DrainerError | None:
    """Returns NotAllowed or TransactionAborted for causes that the program or its administrator must fix, else None."""
    for cause in _causes(error):
        sqlstate = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
        if sqlstate == "42501":
            return NotAllowed(f"the login may lack the role outbox_agent; an administrator runs GRANT outbox_agent TO it: {cause}")
        # An ORM that saw the failure sends no statement, so there is no SQLSTATE. The text of its error may hold the
        # values of the earlier statement, so the text stays in __cause__ only.
        orms = type(cause).__name__ in ("PendingRollbackError", "TransactionManagementError")
        if sqlstate == "25P02" or orms:
            advice = "an earlier statement failed and aborted this transaction; roll it back and begin again"
            return TransactionAborted(advice if orms else f"{advice}: {cause}")
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an ORM's error, the driver's error that it wraps, and the error that this one wraps."""
    seen = 0
    while error is not None and seen < 8:
        yield error
        error, seen = getattr(error, "orig", None) or error.__cause__, seen + 1


def _refusal(kind: type[Refused], error: Any) -> Refused:
    diagnostics = getattr(error, "diag", None)
    if diagnostics is None:
        while error.__cause__ is not None and not hasattr(error, "detail"):
            error = error.__cause__  # SQLAlchemy's copy of asyncpg's error has no detail
        message, detail, hint = getattr(error, "message", str(error)), getattr(error, "detail", None), getattr(error, "hint", None)
    else:
        message, detail, hint = diagnostics.message_primary, diagnostics.message_detail, diagnostics.message_hint
    first = re.match(r"Intent (\d+) holds the key (\S+) and is (\w+)\.$", detail or "")
    return kind(
        (message or kind.__doc__ or "").removeprefix("outbox: "), hint=hint,
        intent_id=int(first[1]) if first else None, key=first[2] if first else None, status=first[3] if first else None,
    )
