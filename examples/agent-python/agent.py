"""An agent that may crash at any line. Its model is a file of turns, so that it runs without one.

    python3 agent.py RUN ROLE

Each turn is one transaction: what the tool would do becomes an intent, and the agent notes that the
turn is over. So after a crash the turn is asked again, perhaps in other words, or it is not; its
effect happens once. The tables stand in schema.sql, the turns in turns.json.
"""

import json
import os
import sys
from pathlib import Path

import psycopg2

from drainer import KeyTaken, Outbox

# The step is the tool's name, and never what a model says. The scope is an argument that names a record.
TOOLS = {
    "charge": {"tool": "demo/charge", "scope": "invoice"},
    "notify": {"tool": "demo/charge", "scope": "customer"},
    "close": {"tool": "demo/charge", "scope": "ticket"},
}


def main(run: str, role: str) -> None:
    turns = json.loads(Path(__file__).with_name("turns.json").read_text())[role]
    connection = psycopg2.connect(os.environ["DATABASE_URL"])
    with connection, connection.cursor() as cursor:  # a start counts, so that the model words things differently
        cursor.execute(
            "INSERT INTO agent.progress AS p (run, role) VALUES (%s, %s)"
            " ON CONFLICT (run, role) DO UPDATE SET starts = p.starts + 1 RETURNING starts", (run, role))
        (starts,) = cursor.fetchone()
    while turn(connection, run, role, turns, starts):
        pass


def turn(connection, run: str, role: str, turns: list, starts: int) -> bool:
    """Takes the next turn; False at the end."""
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT turn FROM agent.progress WHERE run = %s AND role = %s FOR UPDATE", (run, role))
        (number,) = cursor.fetchone()
        if number == len(turns):
            return False
        wordings = turns[number]
        call = wordings[starts % len(wordings)]
        answer = act(connection, run, **call)
        cursor.execute("UPDATE agent.progress SET turn = turn + 1, heard = heard || %s WHERE run = %s AND role = %s",
                       ([answer], run, role))
    return True


def act(connection, run: str, tool: str, arguments: dict) -> str:
    """Turns a tool call into an intent of this transaction, and says what to tell the model."""
    known = TOOLS[tool]
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT call")  # a refusal aborts no more than this
        try:
            intent = Outbox().enqueue(connection, run=run, step=tool, tool=known["tool"],
                                      scope=arguments[known["scope"]], payload=arguments)
            return intent.for_model
        except KeyTaken as taken:  # asked before, with other values
            cursor.execute("ROLLBACK TO SAVEPOINT call")
            return taken.for_model


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
