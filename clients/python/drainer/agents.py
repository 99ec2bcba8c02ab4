"""Makes tools for agent frameworks whose calls become intents. A framework is imported only when it is used."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import DrainerError, NotCommitted, NotInTransaction
from .outbox import Intent, Outbox
from .results import NO_POOL, Completed, Pending, opened, pool_of, way

_log = logging.getLogger("drainer")

# The model reads FAULT if the commit fails. The commit may have happened before its reply was lost.
FAULT = "It may have been recorded. Asking for it once more with the same values is safe."
# The model reads this instead if the step is FROM_TOOL_USE_ID, because its next request is another step.
FAULT_OF_A_NEW_STEP = "It may have been recorded. Do not ask for it again, because it could be done twice. Tell the user."
# The model reads NOT_RECORDED if the program or the database fails before the commit.
NOT_RECORDED = "It was not recorded this time, because the program or its database failed. Tell the user."


class _FromToolUseId:
    """The type of FROM_TOOL_USE_ID."""


# FROM_TOOL_USE_ID as a step stands for the id of the model's request. A model that asks again makes a new id, and the
# effect happens again. So use it only for effects that may happen twice in a run, and only in a hook, which gets the id.
FROM_TOOL_USE_ID = _FromToolUseId()

Act = Callable[[Any, dict[str, Any]], Any]
Connect = str | Callable[[], Any]


@dataclass(frozen=True)
class Answer:
    """A text for the model to read."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class OutboxTool:
    """A tool whose calls each become one intent of a run. outbox_tool makes it."""

    name: str
    description: str
    schema: Any
    tool: str
    step: str | _FromToolUseId
    scope: Callable[[dict[str, Any]], str]
    wait: float
    act: Act

    def call(self, arguments: Mapping[str, Any], *, run: str, connect: Connect, tool_use_id: str | None = None) -> Answer:
        """Runs the function and enqueues in one transaction. If the tool has a wait, it then waits for the result.

        connect is a connection string, for psycopg or else psycopg2, or a function that opens a DB-API connection to
        the agent's database. The connection is closed afterwards, or returned to its pool. For a pool of psycopg2,
        connect has to be a method of the pool, as in pool.getconn. A tool that waits cannot take a connection from a
        pool. call raises the errors of the function and of the driver. A refusal of the outbox becomes an Answer.
        """
        try:
            intent, database = self._commit(dict(arguments), run, connect, tool_use_id, threading.Event())
            return self._told(intent, None if self.wait <= 0 else Outbox().wait(database, intent, timeout=self.wait))
        except DrainerError as refused:
            return _refusal(refused)

    async def answer(
        self, arguments: Mapping[str, Any], *, run: str, connect: Connect, tool_use_id: str | None = None,
        committed: Callable[[Answer], None] = lambda _: None,  # gets the answer for a caller that gives up the wait
    ) -> Answer:
        """Does the same as call for asynchronous frameworks. It commits in a thread, and waits without one.

        Errors that call would raise are logged, and the model reads whether the intent was recorded.
        """
        commits, recorded = threading.Event(), None
        try:
            try:
                intent, database = await asyncio.to_thread(
                    self._commit_for_a_future, dict(arguments), run, connect, tool_use_id, commits)
                recorded = self._told(intent, None)
                committed(recorded)
                return recorded if self.wait <= 0 else self._told(intent, await Outbox().result(database, intent, timeout=self.wait))
            except DrainerError as refused:
                return _refusal(refused)
        except Exception as error:
            # The model does not get the text of a driver's error, which may hold values of the statement.
            _log.exception("the tool %s failed", self.name)
            if recorded is not None and not isinstance(error, NotCommitted):
                return recorded  # only the wait for its result failed
            return self.fault() if commits.is_set() else Answer(NOT_RECORDED, is_error=True)

    def fault(self) -> Answer:
        """Returns the answer if it is not known whether the intent was recorded."""
        return Answer(FAULT_OF_A_NEW_STEP if isinstance(self.step, _FromToolUseId) else FAULT, is_error=True)

    def _commit_for_a_future(self, *given: Any) -> tuple[Intent, Connect]:
        try:
            return self._commit(*given)
        except StopIteration as error:  # a future refuses it, and the call would never be answered
            raise RuntimeError("the tool's function raised StopIteration") from error

    def _commit(
        self, arguments: dict[str, Any], run: str, connect: Connect, tool_use_id: str | None, commits: threading.Event,
    ) -> tuple[Intent, Connect]:
        step = self.step
        if isinstance(step, _FromToolUseId):
            if not tool_use_id:
                raise ValueError(f"{self.name} takes its step from the tool use id, and there is none here; only a hook is told it")
            step = tool_use_id
        connection = connect() if callable(connect) else opened(connect)
        if connection is None:
            raise ImportError("a tool with a connection string needs psycopg or psycopg2")
        pool = None
        try:
            if callable(connect):
                pool = pool_of(connection, connect)
            if pool is not None and self.wait > 0:
                raise DrainerError(NO_POOL)
            if getattr(connection, "autocommit", False):
                raise NotInTransaction("autocommit is on: what the function writes would stay where the intent is refused")
            payload = self.act(connection, arguments)
            intent = Outbox().enqueue(
                connection, run=run, step=step, tool=self.tool, scope=self.scope(arguments), payload=payload)
            commits.set()
            connection.commit()
            # A program may make a function for each run. All that lead to one place share the connection of their waits.
            database: Connect = way(connect, connection) if callable(connect) else connect
        finally:
            # An open transaction is rolled back. A pool needs its connection back instead of a closed one.
            if pool is None:
                connection.close()
            else:
                pool.putconn(connection)
        return intent, database

    def _told(self, intent: Intent, done: Completed | Pending | None) -> Answer:
        if isinstance(done, Completed) and done.provider_ref is not None:
            return Answer(f"{done.for_model} Reference: {done.provider_ref}")
        return Answer((done or intent).for_model)


def _refusal(refused: DrainerError) -> Answer:
    if not refused.for_model:
        raise refused  # a model cannot do anything about it
    return Answer(refused.for_model, is_error=True)


def outbox_tool(
    tool: str, *, step: str | _FromToolUseId, scope: Callable[[dict[str, Any]], str], schema: Any = None,
    wait: float = 0.0, name: str | None = None,
) -> Callable[[Act], OutboxTool]:
    """Makes a tool of a function that takes a connection and the model's arguments.

    The function writes the agent's own state over the connection, and returns the payload. It does not commit. Its
    docstring is the tool's description; without one, a ValueError is raised. step names the purpose within the run.
    scope returns the record that the effect is about, from the arguments. wait is how many seconds to wait for
    the result; 0 does not wait. schema describes the arguments in the form that the framework takes; without it, any
    arguments are accepted.
    """

    def made(act: Act) -> OutboxTool:
        description = (act.__doc__ or "").strip()
        if not description:
            raise ValueError(f"{act.__name__} needs a docstring: it tells the model when to use the tool")
        taken = {"type": "object", "properties": {}} if schema is None else schema  # the least that the Claude Agent SDK accepts as a JSON Schema
        return OutboxTool(name or act.__name__, description, taken, tool, step, scope, wait, act)

    return made


def outbox_server(name: str, tools: Iterable[OutboxTool], *, run: str, connect: Connect, version: str = "1.0.0") -> Any:
    """Returns an in-process MCP server of these tools for ClaudeAgentOptions.mcp_servers of the Claude Agent SDK.

    A server belongs to one run, so the model cannot name another run.
    """
    import claude_agent_sdk

    def handled(each: OutboxTool) -> Any:
        _require_named_step(each)

        async def handler(arguments: dict[str, Any]) -> dict[str, Any]:
            answer = await each.answer(arguments, run=run, connect=connect)
            return {"content": [{"type": "text", "text": answer.text}], "is_error": answer.is_error}

        return claude_agent_sdk.tool(each.name, each.description, each.schema)(handler)

    return claude_agent_sdk.create_sdk_mcp_server(name=name, version=version, tools=[handled(each) for each in tools])


def add_to_mcp_server(server: Any, tools: Iterable[OutboxTool], *, run: str, connect: Connect) -> None:
    """Sets these tools as the tools of an mcp.server.lowlevel.Server of the official MCP SDK, version 1.

    Each schema has to be a JSON Schema of an object. A server belongs to one run, so the model cannot name another run.
    """
    if not hasattr(server, "list_tools"):
        raise TypeError("this takes an mcp.server.lowlevel.Server of the MCP SDK, version 1; version 2 makes a server with its tools")
    from mcp import types

    by_name = {each.name: each for each in tools}
    for each in by_name.values():
        _require_named_step(each)
        if not isinstance(each.schema, Mapping) or each.schema.get("type") != "object":
            raise ValueError(f"{each.name} needs a JSON Schema of an object: MCP clients are shown it")

    async def listed() -> list[Any]:
        return [types.Tool(name=each.name, description=each.description, inputSchema=each.schema) for each in by_name.values()]

    async def called(name: str, arguments: dict[str, Any]) -> list[Any]:
        if name not in by_name:
            raise Refused(f"There is no tool {name}.")
        answer = await by_name[name].answer(arguments, run=run, connect=connect)
        if answer.is_error:
            raise Refused(answer.text)
        return [types.TextContent(type="text", text=answer.text)]

    server.list_tools()(listed)
    server.call_tool()(called)


class Refused(Exception):
    """An error for the model to read: the MCP SDK sends the text of an error that a handler raises."""


def _require_named_step(tool: OutboxTool) -> None:
    if isinstance(tool.step, _FromToolUseId):
        raise ValueError(f"{tool.name} takes its step from the tool use id, which a handler is not told; use outbox_hook")


Hook = Callable[[Any, "str | None", Any], Awaitable[dict[str, Any]]]


def outbox_hook(tools: Mapping[str, OutboxTool], *, run: str, connect: Connect, timeout: float = 50.0) -> Hook:
    """Returns a PreToolUse hook for the Claude Agent SDK that makes intents of calls of the framework's tools.

    tools maps the name of a tool, as the SDK writes it, to the tool that enqueues in its place. The hook denies the
    call itself, with the answer as the reason, so that only drainer acts. It does not touch calls of other tools.

    The hook denies after timeout seconds at the latest. The timeout of its HookMatcher must be longer: when that one
    is over, the SDK lets the call through, and the tool acts in addition to drainer.
    """

    async def hook(given: Any, tool_use_id: str | None, _context: Any) -> dict[str, Any]:
        listed = tools.get(given.get("tool_name"))
        if listed is None:
            return {}
        known = [listed.fault()]  # until the commit is known; the thread of the commit continues after the timeout
        asked = listed.answer(
            given.get("tool_input") or {}, run=run, connect=connect, tool_use_id=tool_use_id, committed=known.append)
        try:
            answer = await asyncio.wait_for(asked, timeout)
        except (asyncio.TimeoutError, TimeoutError):
            answer = known[-1]
        return {"hookSpecificOutput": {
            "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": answer.text,
        }}

    return hook

