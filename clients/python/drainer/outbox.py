"""Outbox enqueues intents in the caller's transaction, and waits for their results."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Protocol, overload

from . import connections, results
from .errors import SENTENCES, Invalid

MAX_PART = 255
MAX_PAYLOAD = 1 << 20
MAX_HEADERS = 64 << 10


@dataclass(frozen=True)
class Intent:
    """An intent that the outbox recorded. It is dispatched only if the caller's transaction commits."""

    id: int
    created: bool  # False: it existed already, and status is its present status
    status: str
    key: str  # the idempotency key that the provider gets
    run: str
    step: str
    tool: str
    scope: str
    _xid: str | None = field(default=None, repr=False, compare=False)

    @property
    def for_model(self) -> str:
        """A sentence for the model, for a tool that does not wait for the result."""
        return SENTENCES["recorded"]


class SyncConnection(Protocol):
    """A connection, session or cursor of a synchronous driver."""

    def close(self) -> None: ...


class AsyncConnection(Protocol):
    """A connection or session of an asynchronous driver."""

    def close(self) -> Awaitable[None]: ...


class Outbox:
    """Enqueues intents and waits for their results. It never commits or closes a connection of the caller."""

    @overload
    def enqueue(
        self, connection: SyncConnection, *, run: str, step: str, tool: str, scope: str, payload: Any,
        not_before: datetime | None = None, headers: Mapping[str, str] | None = None,
    ) -> Intent: ...

    @overload
    def enqueue(
        self, connection: AsyncConnection, *, run: str, step: str, tool: str, scope: str, payload: Any,
        not_before: datetime | None = None, headers: Mapping[str, str] | None = None,
    ) -> Awaitable[Intent]: ...

    def enqueue(
        self, connection: Any, *, run: str, step: str, tool: str, scope: str, payload: Any,
        not_before: datetime | None = None, headers: Mapping[str, str] | None = None,
    ) -> Intent | Awaitable[Intent]:
        """Records an intent in the connection's open transaction, which the caller commits.

        If an intent with the same run, step, tool and scope exists, it creates nothing and returns that intent. It
        raises NotInTransaction, KeyTaken, RunClosed, Invalid, UnknownTool, OtherTenant, LimitReached, NotAllowed or
        TransactionAborted, and otherwise the driver's errors. On an asynchronous connection it returns an awaitable.
        """
        values = validated(run, step, tool, scope, payload, not_before, headers)

        def intent(row: Any) -> Intent:
            return Intent(int(row[0]), bool(row[1]), str(row[2]), str(row[3]), run, step, tool, scope, str(row[4]))

        enqueued: Intent | Awaitable[Intent] = connections.enqueue(connection, values, intent)
        return enqueued

    def wait(
        self, database: str | Callable[[], Any], intent: Intent | int, *, timeout: float = 30.0
    ) -> results.Completed | results.Pending:
        """Returns Completed, or Pending after timeout seconds. Call it after the commit.

        database is a connection string, or a function that opens a DB-API connection. All waits of a process on one
        database share one connection. It raises Failed, Unknown, Cancelled, Undone or NotCommitted, or another
        DrainerError if the database cannot be asked: its __cause__ is the reason.
        """
        return results.wait(database, *_identity(intent), timeout=timeout)

    async def result(
        self, database: str | Callable[[], Any], intent: Intent | int, *, timeout: float = 30.0
    ) -> results.Completed | results.Pending:
        """Does the same as wait in asynchronous programs, without blocking the event loop."""
        awaited: asyncio.Future[results.Completed | results.Pending] = asyncio.get_running_loop().create_future()
        waiting = results.begin(database, *_identity(intent), awaited=awaited)
        try:
            return await asyncio.wait_for(awaited, timeout)
        except (asyncio.TimeoutError, TimeoutError):
            return waiting.pending()
        finally:
            waiting.forget()


def _identity(intent: Intent | int) -> tuple[int, str | None, bool]:
    number, xid, created = (intent.id, intent._xid, intent.created) if isinstance(intent, Intent) else (intent, None, True)
    # One statement asks for all waits, so an id that it cannot take would end the other waits too.
    if not isinstance(number, int) or not 0 < number < 1 << 63:
        raise TypeError(f"intent is {type(number).__name__}; pass the Intent that enqueue returned, or its id")
    return number, xid, created


def idempotency_key(
    run: str, step: str, tool: str, scope: str, *, namespace: str = "", tenant: str = "", generation: int = 1
) -> str:
    """Computes the key of an intent. Only the database knows the namespace and generation, so prefer Intent.key.

    A key never has the name of a tenant of the outbox: leave tenant empty and pass the tenant's namespace.
    """
    parts = [run, step, tool, scope]
    if namespace:
        parts.append("ns=" + namespace)
    if tenant:
        parts.append("tenant=" + tenant)
    if generation > 1:
        parts.append(f"gen={generation}")
    encoded = [part.encode() for part in parts]
    netstrings = b"".join(b"%d:%s," % (len(part), part) for part in encoded)
    return "idem_v1_" + hashlib.sha256(netstrings).hexdigest()[:32]


def validated(
    run: str, step: str, tool: str, scope: str, payload: Any,
    not_before: datetime | None, headers: Mapping[str, str] | None,
) -> tuple[str | None, ...]:
    """Returns the arguments of outbox.enqueue, each as text. Raises Invalid for those that the server would refuse."""
    for name, part in (("run", run), ("step", step), ("tool", tool), ("scope", scope)):
        if not isinstance(part, str):
            raise Invalid(f"{name} is {type(part).__name__}; it must be text")
        _check_text(name, part)
        if part == "":
            raise Invalid(f"{name} is empty")
        if (size := len(part.encode())) > MAX_PART:
            raise Invalid(f"{name} is {size} bytes long; at most {MAX_PART} are allowed")
    if step.startswith("compensate:"):
        raise Invalid('step begins with "compensate:", which is kept for undos')
    if tool.startswith("/"):
        raise Invalid("tool begins with a slash; write <provider>/<operation>")
    if payload is None:
        raise Invalid("payload is None; write {} for none")
    if isinstance(payload, str) and _holds_json(payload):
        raise Invalid("payload is a text that holds JSON; pass the value itself, not json.dumps of it")
    encoded = encode("payload", payload)
    if len(encoded.encode()) > MAX_PAYLOAD:
        raise Invalid("payload is longer than 1 MiB; keep what is large elsewhere, and enqueue where it is")
    if not_before is not None and (not isinstance(not_before, datetime) or not_before.utcoffset() is None):
        raise Invalid("not_before needs a datetime with a time zone")
    if not_before is not None and not_before.year > 9998:
        raise Invalid("not_before is later than the year 9998")
    carried = None
    if headers is not None:
        if not isinstance(headers, Mapping):
            raise Invalid("headers must be a mapping of names to texts")
        carried = encode("headers", headers)
        if len(carried.encode()) > MAX_HEADERS:
            raise Invalid("headers are longer than 64 KiB")
    # str.__str__ gives the value of an enum; a driver may send its name.
    return *(str.__str__(part) for part in (run, step, tool, scope)), encoded, None if not_before is None else not_before.isoformat(), carried


def encode(where: str, value: Any, depth: int = 0) -> str:
    """Returns JSON for jsonb. json.dumps would write NaN, refuse a Decimal, and turn keys into text."""
    if depth > 200:
        raise Invalid(f"{where.partition('.')[0]} is nested more than 200 deep")
    if value is None or value is True or value is False:
        return json.dumps(value)
    if isinstance(value, str):
        _check_text(where, value)
        return json.dumps(value, ensure_ascii=False)  # the value of an enum; str() would give its name
    if isinstance(value, int):
        try:
            return int.__repr__(value)
        except ValueError:
            raise Invalid(f"{where} is a number of too many digits") from None
    if isinstance(value, float):
        if not math.isfinite(value):
            raise Invalid(f"{where} is {value}, which JSON cannot hold")
        return float.__repr__(value)
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise Invalid(f"{where} is {value}, which JSON cannot hold")
        if value.adjusted() >= 131072 or int(value.as_tuple().exponent) < -16383:
            raise Invalid(f"{where} is a number of too many digits")
        return format(value, "f")  # all digits; the server limits their number
    if isinstance(value, Mapping):
        members = []
        for name, member in value.items():
            if not isinstance(name, str):
                raise Invalid(f"{where} has a name that is {type(name).__name__}; names must be text")
            members.append(f"{encode(where, name, depth)}: {encode(f'{where}.{name}', member, depth + 1)}")
        return "{" + ", ".join(members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(encode(f"{where}[{at}]", element, depth + 1) for at, element in enumerate(value)) + "]"
    raise Invalid(f"{where} is {type(value).__name__}, which JSON cannot hold; pass text")


def _check_text(where: str, text: str) -> None:
    if "\x00" in text:
        raise Invalid(f"{where} has a NUL character, which Postgres cannot store")
    if re.search("[\ud800-\udfff]", text):
        raise Invalid(f"{where} has half a surrogate pair, which is no text")


def _holds_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[", '"')):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
