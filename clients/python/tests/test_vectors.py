"""What Go and TypeScript check of themselves, too: clients/vectors.json."""

import enum
import json
import unittest
from types import SimpleNamespace
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path

import world  # noqa: F401  finds the package
import drainer
from drainer import errors, outbox, results

VECTORS = json.loads((Path(__file__).resolve().parents[2] / "vectors.json").read_text(encoding="utf-8"))


def plain(value):
    """A value as Python has it: JSON alone cannot tell 1 from 1.0."""
    if isinstance(value, dict) and len(value) == 1:
        [(kind, held)] = value.items()
        if kind in ("$int", "$float", "$decimal"):
            return {"$int": int, "$float": float, "$decimal": Decimal}[kind](held)
        if kind == "$repeat":
            return held[0] * held[1]
    if isinstance(value, dict):
        return {name: plain(member) for name, member in value.items()}
    return [plain(element) for element in value] if isinstance(value, list) else value


class Colour(str, enum.Enum):
    RED = "red"


class TestVectors(unittest.TestCase):
    def test_keys(self):
        for vector in VECTORS["keys"]:
            four = [vector[part] for part in ("run", "step", "tool", "scope")]
            named = {name: vector[name] for name in ("namespace", "tenant", "generation") if name in vector}
            self.assertEqual(drainer.idempotency_key(*four, **named), vector["key"], four)

    def test_errors_and_sentences(self):
        self.assertEqual(errors.SENTENCES, VECTORS["sentences"])
        self.assertEqual(set(errors.REFUSALS), {vector["sqlstate"] for vector in VECTORS["errors"]})
        for vector in VECTORS["errors"]:
            error = errors.REFUSALS[vector["sqlstate"]]("said")
            self.assertEqual((type(error).__name__, error.for_model), (vector["name"], VECTORS["sentences"][vector["sentence"]]))
        for vector in VECTORS["outcomes"]:
            if vector["status"] == "completed":
                self.assertEqual(drainer.Completed(1, None, None).for_model, VECTORS["sentences"]["completed"])
                continue
            error = errors.SETTLED[vector["status"]](1, vector["status"], None, None, None)
            self.assertEqual((type(error).__name__, error.for_model), (vector["name"], VECTORS["sentences"][vector["status"]]))

    def test_invalid_intents_are_refused_without_a_connection(self):
        for vector in VECTORS["invalid"]:
            with self.subTest(vector["name"]), self.assertRaises(drainer.Invalid) as refused:
                drainer.Outbox().enqueue(None, **plain(vector["intent"]))
            self.assertIn(vector["says"], str(refused.exception))
        for text in VECTORS["double_encoded"]:
            with self.subTest(text), self.assertRaisesRegex(drainer.Invalid, "holds JSON"):
                drainer.Outbox().enqueue(None, run="r", step="s", tool="p/o", scope="b", payload=text)

    def test_payloads(self):
        for vector in VECTORS["payloads"]:
            self.assertIn(outbox.encode("payload", plain(vector["value"])), vector["sent"], vector["name"])

    def test_which_errors_a_wait_outlives(self):
        for sqlstate, passes in VECTORS["passes"].items():
            self.assertEqual(results._passes(SimpleNamespace(sqlstate=sqlstate)), passes, sqlstate)

    def test_an_enum_of_texts_is_its_value(self):
        values = outbox.validated(Colour.RED, "s", "p/o", "b", {Colour.RED: [Colour.RED]}, None, None)
        self.assertEqual((type(values[0]), values[0], values[4]), (str, "red", '{"red": ["red"]}'))

    def test_what_only_python_could_get_wrong(self):
        endless = []
        endless.append(endless)
        for payload, says in (
            (float("nan"), "nan"), ({"a": [float("inf")]}, r"payload.a\[0\]"), (Decimal("sNaN"), "JSON cannot hold"),
            ({1: "a"}, "a name that is int"), ({"at": datetime.now(timezone.utc)}, "payload.at is datetime"),
            (b"{}", "bytes"), ("\ud800", "half a surrogate pair"), (endless, "nested"), (10**5000, "too many digits"),
            (Decimal("1E+131072"), "too many digits"), (Decimal("1E-16384"), "too many digits"),
            ([Decimal("1E+110000")] * 10, "1 MiB"),
        ):
            with self.assertRaisesRegex(drainer.Invalid, says):
                outbox.validated("r", "s", "p/o", "b", payload, None, None)
        with self.assertRaisesRegex(drainer.Invalid, "time zone"):
            outbox.validated("r", "s", "p/o", "b", {}, datetime.now(), None)
        with self.assertRaisesRegex(drainer.Invalid, "run is int"):
            outbox.validated(17, "s", "p/o", "b", {}, None, None)


if __name__ == "__main__":
    unittest.main()
