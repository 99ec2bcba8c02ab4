package operator

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentoutbox/drainer/dispatch"
)

// way is a transition between two statuses. A new intent comes from start.
type way struct{ from, to string }

const (
	start = "[*]"
	root  = "../../"

	house            = "drainer/postgres/sql/"
	engineSettles    = house + "settle.sql"
	sagaMoves        = house + "saga/move.sql"
	operatorSettles  = house + "operator/settle.sql"
	operatorRequeues = house + "operator/requeue.sql"
	operatorForwards = house + "operator/forward.sql"
)

// docs/architecture.md has a table of the statements that write each status. The first test compares it with the text
// of the SQL, the second with the decisions in Go and with the diagram in docs/concepts.md. Where a statement
// chooses its rows by itself, neither test sees from which status it starts. The models in model/ do: they
// compare its steps with the real tables.
func TestTheTableNamesEachWriterAndItsStatuses(t *testing.T) {
	t.Parallel()
	table, writers := waysInTheTable(t), writersIn(t)
	for file := range table {
		if writers[file] == "" {
			t.Errorf("docs/architecture.md names %s, which writes none of the tables", file)
		}
	}
	// These files take a status as a parameter. compensations/store.go passes it to the last one.
	passed := map[string]map[string]bool{
		engineSettles:   statusesOf(waysOfDecisions()),
		operatorSettles: statusesOf(waysOfOperators()[operatorSettles]),
		sagaMoves:       {"compensated": true, "compensation_failed": true},
	}
	for file, text := range writers {
		if !strings.HasPrefix(file, house) && !strings.HasPrefix(file, "migrations/sql/") {
			t.Errorf("%s writes attempt, queue, claim, saga or incident; such a statement belongs in %s", file, house)
		}
		ways, isNamed := table[file]
		if !isNamed {
			t.Errorf("docs/architecture.md does not name %s, which writes attempt, queue, claim, saga or incident", file)
		}
		written, isPassed := statusesWritten(t, file, text)
		if isPassed != (passed[file] != nil) {
			t.Errorf("%s takes a status as a parameter: %t; this test thinks otherwise", file, isPassed)
		}
		maps.Copy(written, passed[file])
		if named := statusesOf(ways); !maps.Equal(written, named) {
			t.Errorf("%s writes %q, docs/architecture.md says %q", file, slices.Sorted(maps.Keys(written)), slices.Sorted(maps.Keys(named)))
		}
	}
}

func TestTheTableAndTheDiagramShowEveryWayThatTheCodeTakes(t *testing.T) {
	t.Parallel()
	table := waysInTheTable(t)
	decided := waysOfOperators()
	decided[engineSettles] = waysOfDecisions()
	for _, undo := range []way{{"completed", "compensated"}, {"completed", "compensation_failed"}, {start, "pending"}} {
		decided[engineSettles][undo] = true // of the step that it undoes, and of the undo that follows
	}
	for file, ways := range decided {
		if !maps.Equal(ways, table[file]) {
			t.Errorf("%s takes the ways %v, docs/architecture.md says %v", file, ways, table[file])
		}
	}

	drawn, named := waysInTheDiagram(t), map[way]bool{}
	for _, ways := range table {
		maps.Copy(named, ways)
	}
	for w := range named {
		if !drawn[w] && w.from != w.to {
			t.Errorf("docs/concepts.md lacks %s --> %s", w.from, w.to)
		}
	}
	for w := range drawn {
		if !named[w] {
			t.Errorf("docs/concepts.md shows %s --> %s, which docs/architecture.md lacks", w.from, w.to)
		}
	}
}

// waysInTheTable returns the ways of each file that the section names. A row has every way from a status on the
// left of its arrow to one on the right.
func waysInTheTable(t *testing.T) map[string]map[way]bool {
	t.Helper()
	section := regexp.MustCompile(`(?s)## Who writes which status\n(.*?)\n## `).FindStringSubmatch(read(t, "docs/architecture.md"))
	if section == nil {
		t.Fatal("docs/architecture.md has no section on who writes which status")
	}
	status, file := regexp.MustCompile("`(\\w+)`"), regexp.MustCompile("`([\\w/]+\\.sql)`")
	table := map[string]map[way]bool{}
	for row := range strings.Lines(section[1]) {
		if !strings.HasPrefix(row, "|") {
			continue
		}
		from, to, _ := strings.Cut(row, "→")
		sources := status.FindAllStringSubmatch(from, -1)
		if sources == nil {
			sources = [][]string{{"", start}}
		}
		for _, named := range file.FindAllStringSubmatch(row, -1) {
			name := named[1]
			if !strings.HasPrefix(name, "migrations/") {
				name = house + name
			}
			if table[name] == nil {
				table[name] = map[way]bool{}
			}
			for _, source := range sources {
				for _, target := range status.FindAllStringSubmatch(to, -1) {
					table[name][way{source[1], target[1]}] = true
				}
			}
		}
	}
	return table
}

func waysInTheDiagram(t *testing.T) map[way]bool {
	t.Helper()
	diagram := regexp.MustCompile("(?s)```mermaid\n(.*?)```").FindStringSubmatch(read(t, "docs/concepts.md"))
	if diagram == nil {
		t.Fatal("docs/concepts.md has no diagram")
	}
	drawn := map[way]bool{}
	for _, edge := range regexp.MustCompile(`(\S+) --> (\w+):`).FindAllStringSubmatch(diagram[1], -1) {
		drawn[way{edge[1], edge[2]}] = true
	}
	return drawn
}

func waysOfDecisions() map[way]bool {
	taken := map[way]bool{}
	const ttl, tries = 24 * time.Hour, 3
	lookups := map[bool]*dispatch.Lookup{false: nil, true: {Operation: "find"}}
	for _, class := range dispatch.Classes() {
		for asks := range lookups {
			policy := dispatch.Policy{Class: class, KeyTTL: ttl, MaxAttempts: tries, Lookup: lookups[asks]}
			for history := range histories(tries, ttl) {
				for _, result := range results() {
					to := string(policy.Decide(history, result, 0).Status)
					if history.Lookup || (history.MaybeApplied && class != dispatch.NonIdempotent) {
						taken[way{"unknown", to}] = true // it was looked up, or repeated where that is as safe as a lookup
					}
					if !history.Lookup {
						taken[way{"in_progress", to}] = true
					}
				}
			}
		}
	}
	return taken
}

func histories(tries int, ttl time.Duration) map[dispatch.History]bool {
	all := map[dispatch.History]bool{}
	for _, used := range []int{1, tries, tries + 100} {
		for _, since := range []time.Duration{0, ttl} {
			for _, history := range []dispatch.History{{}, {MaybeApplied: true}, {MaybeApplied: true, Lookup: true}} {
				history.Tries, history.SinceFirstSend = used, since
				all[history] = true
			}
		}
	}
	return all
}

func results() (all []dispatch.Result) {
	for _, outcome := range dispatch.Outcomes() {
		all = append(all, dispatch.Result{Outcome: outcome}, dispatch.Result{Outcome: outcome, Final: true})
	}
	return all
}

// waysOfOperators returns the ways of each file that executes operators' changes.
func waysOfOperators() map[string]map[way]bool {
	standings := []standing{waiting, doubtful, asking, answered, inProgress, reported(settled("completed"), resolved), beforeLoss(settled("failed")), beforeLoss(settled("cancelled"))}
	for _, status := range []string{"completed", "failed", "unknown", "cancelled", "compensated", "compensation_failed"} {
		standings = append(standings, settled(status))
	}
	for _, from := range slices.Clone(standings) {
		standings = append(standings, inSaga("begun", from), inSaga("compensation_failed", from), inSaga("cancelled", from))
	}
	actions := []Action{Cancel{}, BringForward{}, Retry{MayDuplicate: true}, resolveCompleted, resolveFailed, Resolve{As: dispatch.StatusCompleted, ProviderRef: "r"}}
	taken := map[string]map[way]bool{operatorSettles: {}, operatorRequeues: {}, operatorForwards: {}}
	for _, from := range standings {
		for _, action := range actions {
			change, refused := action.judge(from)
			switch w := (way{from.Status, change.status}); {
			case refused != "":
			case change.requeue != nil:
				taken[operatorRequeues][w] = true
			case change.forward:
				taken[operatorForwards][w] = true
			default:
				taken[operatorSettles][w] = true
			}
		}
	}
	return taken
}

var (
	comment = regexp.MustCompile(`--[^\n]*`)
	writes  = regexp.MustCompile(`\b(?:INSERT INTO|UPDATE|DELETE FROM|MERGE INTO|TRUNCATE|COPY)\s+(?:ONLY\s+)?outbox\.(?:attempt|queue|claim|saga|incident)\b`)
	appends = regexp.MustCompile(`INSERT INTO outbox\.attempt \(([^)]*)\)\s+SELECT `)
	ends    = regexp.MustCompile(`^\s+FROM\b`)
	literal = regexp.MustCompile(`(?:^|THEN |ELSE )'(\w+)'`)
	other   = regexp.MustCompile(`^[^'C]|(?:THEN|ELSE) [^']`) // neither a literal nor a CASE of literals
)

// writersIn returns the text of each file of the program that writes one of the five tables: SQL, or Go with SQL in it.
func writersIn(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name := filepath.ToSlash(strings.TrimPrefix(path, filepath.FromSlash(root)))
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains([]string{"clients", "demo", "drainertest", "examples", "integration", "model"}, name) || strings.HasPrefix(name, ".")):
			return fs.SkipDir // none of these is a part of the program
		case strings.HasSuffix(name, ".sql"), strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go"):
			if text := comment.ReplaceAllString(read(t, name), ""); writes.MatchString(text) {
				found[name] = text
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// statusesWritten returns the statuses that a statement names, and whether a parameter passes it one. A queued row
// counts as pending, and the trigger of outbox.intent queues each new intent.
func statusesWritten(t *testing.T, file, text string) (named map[string]bool, isPassed bool) {
	t.Helper()
	named = map[string]bool{}
	if strings.Contains(text, "INSERT INTO outbox.queue") || strings.Contains(text, "INSERT INTO outbox.intent") {
		named["pending"] = true
	}
	if strings.Contains(text, "INSERT INTO outbox.claim") {
		named["in_progress"] = true
	}
	attempts := appends.FindAllStringSubmatchIndex(text, -1)
	if len(attempts) != strings.Count(text, "INSERT INTO outbox.attempt")+strings.Count(text, "UPDATE outbox.attempt") {
		t.Errorf("%s writes an attempt in a form that this test cannot read", file)
	}
	for _, at := range attempts {
		columns := strings.Split(strings.Join(strings.Fields(text[at[2]:at[3]]), ""), ",")
		status := nthValue(text[at[1]:], slices.Index(columns, "status"))
		for _, found := range literal.FindAllStringSubmatch(status, -1) {
			named[found[1]] = true
		}
		isPassed = isPassed || other.MatchString(status)
	}
	return named, isPassed
}

// nthValue returns the nth value of the list that a SELECT begins with, counted from 0.
func nthValue(list string, n int) string {
	depth, begin := 0, 0
	for i, c := range list {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case depth == 0 && (c == ',' || ends.MatchString(list[i:])):
			if n == 0 {
				return strings.TrimSpace(list[begin:i])
			}
			n, begin = n-1, i+1
		}
	}
	return list
}

func statusesOf(ways map[way]bool) map[string]bool {
	statuses := map[string]bool{}
	for w := range ways {
		statuses[w.to] = true
	}
	return statuses
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(root + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
