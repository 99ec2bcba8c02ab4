"""Tools of agent frameworks whose call becomes an intent. No framework is imported before it is used."""

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

# Said where the commit fails: it may have happened before its answer was lost.
FAULT = "It may have been recorded. Asking for it once more with the same values is safe."
# The same for FROM_TOOL_USE_ID, where the next request is another step.
FAULT_OF_A_NEW_STEP = "It may have been recorded. Do not ask for it again, because it could be done twice. Tell the user."
# Said where the program or the database fails before the commit.
NOT_RECORDED = "It was not recorded this time, because the program or its database failed. Tell the user."


class _FromToolUseId:
    """The type of FROM_TOOL_USE_ID."""


# As a step: the id of the model's request. A model that asks again makes a new one, and the effect happens
# again. So take it only for what may happen twice in a run, and only in a hook, which is told the id.
FROM_TOOL_USE_ID = _FromToolUseId()

Act = Callable[[Any, dict[str, Any]], Any]
Connect = str | Callable[[], Any]


@dataclass(frozen=True)
class Answer:
    """For the model."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class OutboxTool:
    """A tool of which each call is one intent of a run. outbox_tool makes it."""

    name: str
    description: str
    schema: Any
    tool: str
    step: str | _FromToolUseId
    scope: Callable[[dict[str, Any]], str]
    wait: float
    act: Act

    def call(self, arguments: Mapping[str, Any], *, run: str, connect: Connect, tool_use_id: str | None = None) -> Answer:
        """Runs the function and enqueues in one transaction, then waits for the result if told to.

        connect is a connection string, for psycopg or else psycopg2, or opens a DB-API connection to the
        agent's database. The connection is closed again, or given back to its pool, which for psycopg2 has to be the
        owner of connect, as in pool.getconn. A tool that waits takes none from a pool. Raises what the function or the driver raises; what the outbox
        refuses is an Answer.
        """
        try:
            intent, database = self._commit(dict(arguments), run, connect, tool_use_id, threading.Event())
            return self._told(intent, None if self.wait <= 0 else Outbox().wait(database, intent, timeout=self.wait))
        except DrainerError as refused:
            return _refusal(refused)

    async def answer(
        self, arguments: Mapping[str, Any], *, run: str, connect: Connect, tool_use_id: str | None = None,
        committed: Callable[[Answer], None] = lambda _: None,  # is told what to answer if the wait is given up
    ) -> Answer:
        """Is call for a framework: it commits in a thread and waits in none.

        What call would raise is logged, and the model is told whether the intent was recorded.
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
            # The model is not told: the text of a driver's error may hold values of the statement.
            _log.exception("the tool %s failed", self.name)
            if recorded is not None and not isinstance(error, NotCommitted):
                return recorded  # only the wait for its result failed
            return self.fault() if commits.is_set() else Answer(NOT_RECORDED, is_error=True)

    def fault(self) -> Answer:
        """For where it is not known whether the intent was recorded."""
        return Answer(FAULT_OF_A_NEW_STEP if isinstance(self.step, _FromToolUseId) else FAULT, is_error=True)

    def _commit_for_a_future(self, *given: Any) -> tuple[Intent, Connect]:
        try:
            return self._commit(*given)
        except StopIteration as error:  # no future takes one: the call would never be answered
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
            # A function may be made for each run: all that lead to one place share one wait's connection.
            database: Connect = way(connect, connection) if callable(connect) else connect
        finally:
            # What is not committed is rolled back. A pool would miss a connection that is closed.
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
        raise refused  # no model can do anything about it
    return Answer(refused.for_model, is_error=True)


def outbox_tool(
    tool: str, *, step: str | _FromToolUseId, scope: Callable[[dict[str, Any]], str], schema: Any = None,
    wait: float = 0.0, name: str | None = None,
) -> Callable[[Act], OutboxTool]:
    """Makes a tool of a function that takes a connection and the model's arguments.

    The function writes the agent's own state over the connection, and returns the payload. It does not
    commit. Its docstring is the tool's description. step names the purpose within the run, scope takes the
    record that the effect is about from the arguments, and wait is how many seconds to wait for the result.
    schema is what the framework takes as the schema of the arguments; without one, any arguments are taken.
    """

    def made(act: Act) -> OutboxTool:
        description = (act.__doc__ or "").strip()
        if not description:
            raise ValueError(f"{act.__name__} needs a docstring: it tells the model when to use the tool")
        taken = {"type": "object", "properties": {}} if schema is None else schema  # the Claude Agent SDK takes no less for a JSON Schema
        return OutboxTool(name or act.__name__, description, taken, tool, step, scope, wait, act)

    return made


def outbox_server(name: str, tools: Iterable[OutboxTool], *, run: str, connect: Connect, version: str = "1.0.0") -> Any:
    """An in-process MCP server of these tools for the Claude Agent SDK: a value of ClaudeAgentOptions.mcp_servers.

    A server is of one run: the model cannot name another.
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
    """Makes these the tools of an mcp.server.lowlevel.Server of the official MCP SDK, version 1.

    Each schema has to be a JSON Schema of an object. A server is of one run: the model cannot name another.
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
    """Is told to the model as an error: the MCP SDK makes one of what a handler raises."""


def _require_named_step(tool: OutboxTool) -> None:
    if isinstance(tool.step, _FromToolUseId):
        raise ValueError(f"{tool.name} takes its step from the tool use id, which a handler is not told; use outbox_hook")


Hook = Callable[[Any, "str | None", Any], Awaitable[dict[str, Any]]]


def outbox_hook(tools: Mapping[str, OutboxTool], *, run: str, connect: Connect, timeout: float = 50.0) -> Hook:
    """A PreToolUse hook for the Claude Agent SDK that makes intents of calls of other tools.

    tools maps a tool's name, as the SDK writes it, to what is enqueued. The call itself is denied, with the
    answer as the reason, so that nothing acts but drainer. Calls of other tools are left alone.

    The hook denies after timeout seconds at the latest. Let the timeout of its HookMatcher be longer: when that one is
    over, the SDK lets the call through, and it acts beside drainer.
    """

    async def hook(given: Any, tool_use_id: str | None, _context: Any) -> dict[str, Any]:
        listed = tools.get(given.get("tool_name"))
        if listed is None:
            return {}
        known = [listed.fault()]  # until the commit is known: its thread goes on after the timeout
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

